"""The wheel works where there is no checkout: the commands, the configurations, the type hints."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import vitocr
from vitocr.checkpoint import save_model
from vitocr.description import describe
from vitocr.models.model import build_model

pytestmark = pytest.mark.slow
CHECKOUT = Path(vitocr.__file__).resolve().parent.parent
SPEC = {
    "image_size": [8, 8],
    "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 16, "depth": 1, "heads": 2},
    "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 2},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (CHECKOUT / "pyproject.toml").is_file():
        pytest.skip("vitocr is installed here, and there is no checkout to build a wheel from")
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_with_a_shipped_model(folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    built = run([*pip, "wheel", str(source), "--no-deps", "--wheel-dir", str(folder)], cwd=folder)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("pip cannot fetch hatchling, which builds the wheel: this machine seems to be offline")
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def copy_with_a_shipped_model(target: Path) -> Path:
    """What the wheel is built from, and a model `toy-tiny` among those that ship: it finds everything a circle."""
    for folder in ("vitocr", "conf"):
        shutil.copytree(CHECKOUT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "*.tmp"))
    for file in ("pyproject.toml", "README.md", ".gitignore"):  # what git ignores is left out of wheels
        shutil.copy(CHECKOUT / file, target / file)
    model = build_model(SPEC)
    state = {name: 0 * tensor for name, tensor in model.state_dict().items()}
    description = describe(
        task="shapes",
        kind="classify",
        model=SPEC,
        codec={"type": "classes", "names": ["circle", "square"]},
        preprocess={
            "size": [8, 8],
            "mean": [0.5] * 3,
            "std": [0.2] * 3,
            "resize": "stretch",
            "interpolation": "bicubic",
        },
        metrics={"test": {"accuracy": 0.5}},
    )
    file = target / "vitocr" / "weights" / "toy-tiny.safetensors"
    save_model(file, state, description, storage="float16")
    file.with_suffix(".md").write_text("# toy-tiny\n")
    file.with_suffix(".png").write_bytes(b"a plot")
    return target


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


def test_the_wheel_carries_the_models_that_ship_with_their_cards_and_all_there_are_stay_small(wheel: Path) -> None:
    inside = {entry.filename: entry.file_size for entry in zipfile.ZipFile(wheel).infolist()}
    assert {f"vitocr/weights/toy-tiny.{kind}" for kind in ("safetensors", "md", "png")} <= set(inside)
    shipped = {path.name for path in (CHECKOUT / "vitocr" / "weights").glob("*")} | {"toy-tiny.safetensors"}
    assert {f"vitocr/weights/{name}" for name in shipped if not name.startswith(".")} <= set(inside)
    assert max(size for name, size in inside.items() if name.startswith("vitocr/weights/")) <= 12_000_000


def test_a_shipped_model_is_listed_and_used_by_its_name_offline_and_anywhere(
    clean_python: Path, shapes: Path, tmp_path: Path
) -> None:
    command = str(clean_python / "vitocr")
    listed = run([command, "models"], cwd=tmp_path)
    (line,) = [line for line in listed.stdout.splitlines() if line.endswith("toy-tiny")]
    assert "50.00 % test" in line and "ViT patch=4 dim=16 depth=1" in line and "MB" in line
    predicted = run([command, "predict", "toy-tiny", str(shapes / "circle" / "03.png"), "--json"], cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["name"] == "circle"
    code = f"import vitocr; print(vitocr.load('toy-tiny')({str(shapes / 'circle' / '03.png')!r}).name)"
    assert run([str(clean_python / "python"), "-c", code], cwd=tmp_path).stdout.strip() == "circle"


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
