"""The wheel for machines that only read: all the code, and none of what training takes."""

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import vitocr

pytestmark = pytest.mark.slow
CHECKOUT = Path(vitocr.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    project = CHECKOUT / "packages" / "vitocr-onnx"
    if not project.is_dir():
        pytest.skip("vitocr is installed here, and there is no checkout to build a wheel from")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    command = [*pip, "wheel", str(project), "--no-deps", "--wheel-dir", str(folder)]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("pip cannot fetch hatchling, which builds the wheel: this machine seems to be offline")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("vitocr_onnx-*.whl")
    return zipfile.ZipFile(path)


def test_it_asks_for_onnxruntime_and_not_for_torch(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Version"]) == ("vitocr-onnx", vitocr.__version__)
    asked = {requirement.split(">")[0] for requirement in metadata.get_all("Requires-Dist", [])}
    assert asked == {"lmdb", "numpy", "onnxruntime", "pillow", "rich", "typer"}


def test_it_holds_the_package_as_it_is_and_the_command(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    code = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "vitocr").rglob("*.py")}
    assert code <= inside and "vitocr/py.typed" in inside
    assert not {name for name in inside if "__pycache__" in name or name.startswith(("tests", "conf"))}
    (points,) = [name for name in inside if name.endswith("entry_points.txt")]
    assert "vitocr = vitocr.cli:main" in wheel.read(points).decode()
