"""What the README shows, works as written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from vitocr.checkpoint import save_model
from vitocr.cli import main as vitocr_command
from vitocr.config import conf_dir
from vitocr.description import describe
from vitocr.models.model import build_model

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
LINES = [line.split("#")[0].strip() for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]


@pytest.fixture
def where_the_readme_works(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the README names: a trained run, photographs."""
    run = re.search(r'vitocr\.load\("([^"]+)"\)', README)
    assert run is not None
    spec = {
        "image_size": [16, 16],
        "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 1, "heads": 2},
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 3},
    }
    preprocess = {
        "size": [16, 16],
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
        "resize": "stretch",
        "interpolation": "bicubic",
    }
    codec = {"type": "classes", "names": ["circle", "square", "triangle"]}
    description = describe(task="folder", kind="classify", model=spec, codec=codec, preprocess=preprocess)
    save_model(tmp_path / run.group(1) / "model.safetensors", build_model(spec).state_dict(), description)
    shutil.copytree(shapes, tmp_path / "photos")
    for name in ("photo.jpg", "a.jpg", "b.png"):
        shutil.copy(shapes / "circle" / "01.png", tmp_path / name)
    (tmp_path / "docs").symlink_to(Path(__file__).parents[1] / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / run.group(1)


def test_its_python_runs(where_the_readme_works: Path) -> None:
    (snippet,) = (text for kind, text in BLOCKS if kind == "python")
    names: dict[str, object] = {"endless_paths": ["a.jpg", "b.png"]}
    exec(snippet, names)
    assert str(names["label"].name) in ("circle", "square", "triangle")  # type: ignore[attr-defined]
    assert len(names["labels"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(("python train.py", "make train ARGS="))])
def test_its_training_commands_compose(line: str) -> None:
    words = shlex.split(line)
    words = shlex.split(words[2].removeprefix("ARGS=")) if words[0] == "make" else words[2:]
    first_job = [word if "[" in word else word.split(",")[0] for word in words if word != "-m"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        assert compose("config", overrides=first_job).name in ("cifar10", "folder", "str")


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.startswith("vitocr ") and " bench" not in line and " data " not in line]
)
def test_its_vitocr_commands_answer(
    line: str, where_the_readme_works: Path, shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = line.replace("RUN", str(where_the_readme_works)).replace("--data cifar10", f"--data {shapes}")
    try:
        vitocr_command(shlex.split(line)[1:])
    except SystemExit as left:
        assert not left.code
    assert capsys.readouterr().out or "--out" in line
