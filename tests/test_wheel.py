"""The wheel works where there is no checkout: the commands, the configurations, the type hints."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import vitocr

pytestmark = pytest.mark.slow
CHECKOUT = Path(vitocr.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (CHECKOUT / "pyproject.toml").is_file():
        pytest.skip("vitocr is installed here, and there is no checkout to build a wheel from")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    built = run([*pip, "wheel", str(CHECKOUT), "--no-deps", "--wheel-dir", str(folder)], cwd=folder)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("pip cannot fetch hatchling, which builds the wheel: this machine seems to be offline")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment: the wheel, and behind it this environment's other packages."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(scripts / "python")]
    installed = run([*pip, "install", "--no-deps", "--no-index", str(wheel)], cwd=home)
    assert installed.returncode == 0, installed.stderr
    found = run([str(scripts / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=home)
    # Packages added by a .pth come last, and .pth files among them (an editable vitocr's) are not obeyed.
    (Path(found.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return scripts


def run(command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VITOCR"))}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def test_the_wheel_carries_configurations_and_type_hints_and_no_tests(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    there = {f"vitocr/conf/{path.relative_to(CHECKOUT / 'conf')}" for path in (CHECKOUT / "conf").rglob("*.yaml")}
    assert there and there <= inside
    assert {"vitocr/py.typed", "vitocr/__init__.py"} <= inside
    assert not {name for name in inside if name.startswith(("tests", "train.py", "runs", "data/"))}


def test_a_model_is_trained_and_used_outside_the_checkout(clean_python: Path, shapes: Path, tmp_path: Path) -> None:
    where = run([str(clean_python / "python"), "-c", "import vitocr; print(vitocr.__file__)"], cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(clean_python.parent), "the checkout was tested, not the wheel"

    command = str(clean_python / "vitocr")
    tiny = ["preprocess.size=[16,16]", "backbone.dim=32", "backbone.depth=1", "backbone.heads=2", "batch_size=8"]
    options = ["steps=3", "augment=batch", "logger=none", "trainer=cpu"]
    trained = run([command, "train", "task=folder", f"data.root={shapes}", *tiny, *options], cwd=tmp_path)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    (folder,) = (tmp_path / "runs" / "folder").iterdir()
    assert {"model.safetensors", "config.yaml", "best.ckpt", "last.ckpt", "metrics.csv", "metrics.json"} <= {
        path.name for path in folder.iterdir()
    }

    model, image = folder / "model.safetensors", shapes / "square" / "07.png"
    predicted = run([command, "predict", str(model), str(image), "--json"], cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    answer = json.loads(predicted.stdout)
    assert answer["name"] in ("circle", "square", "triangle")
    assert 0 < answer["confidence"] <= 1


def test_a_mistake_is_explained_outside_the_checkout_too(clean_python: Path, tmp_path: Path) -> None:
    wrong = run([str(clean_python / "vitocr"), "train", "task=foldr"], cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: there is no task `foldr`. Did you mean task=folder?")
    assert not (tmp_path / "runs").exists()
