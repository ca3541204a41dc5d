"""The wheel for machines that only read: all the code, none of what training takes, and it reads."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from export_kit import pictures, save_small
from packaging.requirements import Requirement
from PIL import Image

import vitocr
from vitocr.export import export

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


def closure(names: list[str]) -> dict[str, Distribution]:
    """These distributions and all that they ask for, as they are installed here."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        wish = waiting.pop()
        if wish.name.lower() in found or (wish.marker and not wish.marker.evaluate({"extra": ""})):
            continue
        try:
            there = found[wish.name.lower()] = distribution(wish.name)
        except PackageNotFoundError:
            continue  # a dependency of another platform, or vendored; what is really missing fails in the test
        waiting += [Requirement(text) for text in there.requires or []]
    return found


@pytest.fixture(scope="module")
def light(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel, and of what is installed here what it asks for, as links."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    (site,) = folder.glob("lib/python*/site-packages")
    wheel.extractall(site)
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    for there in closure(message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])).values():
        tops = {Path(file.parts[0]) for file in there.files or [] if file.parts[0] != ".." and file.suffix != ".pth"}
        for top in tops - {Path("__pycache__"), Path("bin")}:
            target = Path(str(there.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return folder / "bin" / "python"


def test_without_torch_it_reads_as_the_original_does(light: Path, tmp_path: Path) -> None:
    model = save_small(tmp_path / "model.safetensors", "permuted")
    export(model, "onnx")
    words = tmp_path / "words"
    words.mkdir()
    for number, picture in enumerate(pictures(9)):
        Image.fromarray(picture).save(words / f"{number}.png")
    results = vitocr.load(model, device="cpu")(sorted(words.iterdir()))
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(result.to_dict()) + "\n" for result in results))
    script = CHECKOUT / "packages" / "vitocr-onnx" / "check.py"
    command = [str(light), "-I", str(script), str(model.with_suffix(".onnx")), str(words)]
    done = subprocess.run([*command, "--expect", str(tmp_path / "said.jsonl")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and done.stdout.count("ok: ") == 10
