"""The front door: `vitocr.load("model.safetensors")("photo.jpg")` answers with a `Label` or a `Reading`.

Everything here is looked up on first use, so `import vitocr` costs milliseconds and imports no torch; nor does
anything that comes after `vitocr.load("model.onnx")`.
The list of known models is `list_models()`, for `vitocr.models` is the package the networks live in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitocr.catalog import list_models
    from vitocr.errors import UserError
    from vitocr.predict import load
    from vitocr.results import Failure, Label, Reading

__version__ = "0.1.0"

_HOME = {
    "Failure": "vitocr.results",
    "Label": "vitocr.results",
    "Reading": "vitocr.results",
    "UserError": "vitocr.errors",
    "list_models": "vitocr.catalog",
    "load": "vitocr.predict",
}

__all__ = ["Failure", "Label", "Reading", "UserError", "__version__", "list_models", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitocr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
