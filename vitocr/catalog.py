"""Which models there are, and what a name or a folder means. Reads descriptions only: no torch.

A model is named by a file, by a run's folder, or by the name of one that ships in `vitocr/weights/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitocr.description import read_description
from vitocr.errors import UserError, did_you_mean

SHIPPED = Path(__file__).parent / "weights"
IN_A_RUN = ("model.safetensors", "best.ckpt", "last.ckpt", "model.onnx")  # what to take of a run's folder, best first


def find_model(model: str | Path) -> Path:
    """The checkpoint file that `model` stands for."""
    path = Path(model).expanduser()
    shipped = {file.stem: file for file in SHIPPED.glob("*.safetensors")}
    if path.is_dir():
        for name in IN_A_RUN:
            if (path / name).is_file():
                return path / name
        if str(model) in shipped:  # a folder of pictures may well be called as the model that reads them
            return shipped[str(model)]
        raise UserError(f"There is no model in the folder {path}: it has none of {', '.join(IN_A_RUN)}.")
    if path.exists():
        return path
    if str(model) in shipped:
        return shipped[str(model)]
    if len(path.parts) > 1 or path.suffix in (".safetensors", ".ckpt", ".onnx"):
        return path  # meant as a file; who opens it says that it is not there
    near = did_you_mean(str(model), [*shipped, *(entry.name for entry in Path().iterdir())])
    raise UserError(f"There is no model {str(model)!r}.{near} `vitocr models` lists those there are.")


def list_models(runs: str | Path = "runs") -> list[dict[str, Any]]:
    """The shipped models, then the finished runs under `runs`, newest first.

    Each is a dict: `name`, `path`, `bytes`, `shipped`, and `task`, `backbone`, `metrics` of its description.
    """
    shipped = sorted(SHIPPED.glob("*.safetensors"))
    finished = sorted(Path(runs).rglob("model.safetensors"), key=lambda file: -file.stat().st_mtime)
    found = []
    for path in [*shipped, *finished]:
        try:
            description = read_description(path)
        except (UserError, OSError):
            continue  # a broken or foreign file under runs/ should not hide the others
        found.append(
            {
                "name": path.stem if path in shipped else str(path.parent),
                "path": str(path),
                "bytes": path.stat().st_size,
                "shipped": path in shipped,
                "task": description["task"],
                "backbone": backbone_name(description),
                "metrics": description["metrics"],
            }
        )
    return found


def backbone_name(description: dict[str, Any]) -> str:
    """ "vit_small_patch16_224" for timm's, else class and shape: "ViT patch=4 dim=192 depth=6"."""
    backbone = description["model"]["backbone"]
    if "name" in backbone:
        return str(backbone["name"])
    kind = str(backbone["_target_"]).rpartition(".")[2]
    shape = (f"{key}={backbone[key]}" for key in ("patch", "dim", "depth") if key in backbone)
    return " ".join([kind, *shape])


def headline(metrics: Mapping[str, Any]) -> str:
    """ "93.10 % IIIT5k_test, 88.02 % SVT_test": the accuracy on every test set, else on the validation set."""
    known = {name: figures for name, figures in metrics.items() if isinstance(figures, dict) and "accuracy" in figures}
    shown = [name for name in known if name != "val"] or list(known)
    shares = [f"{100 * share:.2f} % {name}" for name in shown if (share := one_accuracy(known[name])) is not None]
    return ", ".join(shares) or "-"


def one_accuracy(figures: Mapping[str, Any]) -> float | None:
    """Words have an accuracy under several protocols: the one they are judged by."""
    accuracy = figures["accuracy"]
    return accuracy.get(figures.get("protocol")) if isinstance(accuracy, dict) else float(accuracy)
