"""Who may know whom (the plan of the house): read from the imports themselves, so that nobody forgets."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import vitocr

ROOT = Path(vitocr.__file__).parent
FILES = sorted(path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*.py"))
TRAINING = ("vitocr/training/", "vitocr/train.py", "vitocr/bench.py")


def module_file(module: str) -> str | None:
    """vitocr.data.folder -> vitocr/data/folder.py, a package -> its __init__.py, anything else -> None."""
    base = ROOT.parent.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path.relative_to(ROOT.parent).as_posix()
    return None


@cache
def imports(file: str) -> frozenset[str]:
    """Modules a file imports anywhere in it, functions included; not those for the type checker alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide who knows whom"
            module = node.module or ""
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names if module_file(f"{module}.{alias.name}"))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse((ROOT.parent / file).read_text(encoding="utf-8")))
    return frozenset(found)


def ours(file: str) -> set[str]:
    return {found for module in imports(file) if module.startswith("vitocr.") and (found := module_file(module))}


def packages(file: str) -> set[str]:
    """Third-party packages, by the name one imports."""
    tops = {module.split(".")[0] for module in imports(file)}
    return tops - set(sys.stdlib_module_names) - {"vitocr"}


def reach(*files: str) -> set[str]:
    """The files that come with these, however late they are imported."""
    reached, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += ours(file)
    return reached


def in_rooms(*rooms: str) -> list[str]:
    return [file for file in FILES if file.startswith(rooms)]


def test_the_rules_are_read_from_real_files() -> None:
    """Guards the guards: an import that moved or a room that was renamed must not make a rule say nothing."""
    assert "vitocr/data/folder.py" in reach("vitocr/predict.py")
    assert "albumentations" in packages("vitocr/data/augment.py")
    assert "lightning" in packages("vitocr/training/module.py")
    assert "hydra" in packages("vitocr/train.py")  # it imports it inside a function
    assert "vitocr/catalog.py" not in ours("vitocr/__init__.py")  # named for the type checker only
    assert all(in_rooms(room) for room in ("vitocr/models/", "vitocr/heads/", "vitocr/data/", *TRAINING))


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith(TRAINING)])
def test_only_training_knows_lightning_and_hydra(file: str) -> None:
    assert not packages(file) & {"lightning", "lightning_fabric", "pytorch_lightning", "hydra", "omegaconf"}


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith((*TRAINING, "vitocr/cli.py"))])
def test_nobody_else_imports_what_belongs_to_training(file: str) -> None:
    assert not {other for other in ours(file) if other.startswith(TRAINING)}


def test_one_file_alone_imports_albumentations() -> None:
    assert [file for file in FILES if "albumentations" in packages(file)] == ["vitocr/data/augment.py"]


@pytest.mark.parametrize("file", in_rooms("vitocr/models/", "vitocr/heads/"))
def test_models_and_heads_know_torch_and_timm_and_no_files(file: str) -> None:
    assert packages(file) <= {"torch", "timm"}
    assert not imports(file) & {"pathlib", "os", "os.path", "shutil", "tempfile", "io"}
    assert all(other.startswith(("vitocr/models/", "vitocr/heads/", "vitocr/errors.py")) for other in ours(file))


@pytest.mark.parametrize("file", in_rooms("vitocr/data/"))
def test_data_knows_no_model(file: str) -> None:
    assert "timm" not in packages(file)
    models = ("vitocr/models/", "vitocr/heads/", "vitocr/checkpoint.py", "vitocr/predict.py")
    assert not {other for other in reach(file) if other.startswith(models)}


@pytest.mark.parametrize("file", ["vitocr/codec.py", "vitocr/metrics.py", "vitocr/results.py", "vitocr/errors.py"])
def test_codecs_metrics_and_results_know_no_model_and_no_torch(file: str) -> None:
    needed = set().union(*(packages(other) for other in reach(file)))
    assert needed <= {"numpy"}
    assert reach(file) <= {file, "vitocr/errors.py"}


def test_an_inference_machine_needs_only_torch_and_what_reads_images() -> None:
    """Everything `vitocr.load(...)(...)` may ever import, models included."""
    used = reach("vitocr/__init__.py", "vitocr/predict.py", "vitocr/checkpoint.py", "vitocr/catalog.py")
    used |= set(in_rooms("vitocr/models/", "vitocr/heads/"))  # a checkpoint names them
    needed = {file: packages(file) for file in sorted(used)}
    allowed = {"torch", "numpy", "PIL", "safetensors", "timm", "onnxruntime"}
    assert {file: extra for file, names in needed.items() if (extra := names - allowed)} == {}


def test_what_reads_an_onnx_file_knows_no_torch_however_far_one_follows_it() -> None:
    used = reach("vitocr/inference/run_onnx.py")
    assert {"vitocr/inference/numpy_decode.py", "vitocr/description.py"} <= used
    assert set().union(*(packages(file) for file in used)) <= {"numpy", "onnxruntime"}


@pytest.mark.parametrize("file", in_rooms("vitocr/export/"))
def test_exporting_takes_what_reading_takes_and_the_packages_of_the_form(file: str) -> None:
    assert packages(file) <= {"torch", "numpy", "PIL", "onnx", "onnxruntime", "onnxscript", "openvino"}


def test_importing_the_package_imports_neither_torch_nor_numpy_and_takes_no_time() -> None:
    script = (
        "import sys, time; began = time.perf_counter(); import vitocr; took = time.perf_counter() - began; "
        "print(took, *sorted({'torch', 'numpy', 'PIL', 'lightning', 'hydra', 'rich', 'typer'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        assert out[1:] == []
        seconds.append(float(out[0]))
    assert min(seconds) < 0.3


def test_asking_for_the_version_or_a_result_type_imports_no_torch() -> None:
    script = (
        "import sys, vitocr; vitocr.Label, vitocr.Failure, vitocr.UserError, vitocr.__version__, dir(vitocr); "
        "print({'torch', 'numpy'} & set(sys.modules) or 'neither')"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "neither"


def test_every_name_of_the_front_door_opens() -> None:
    for name in vitocr.__all__:
        assert getattr(vitocr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        vitocr.laod  # noqa: B018
