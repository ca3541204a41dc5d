"""Finds conf/, in a checkout and in an installed wheel, and compares configurations."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitocr.errors import UserError

# A resumed run may differ in these from the run it continues: they do not change what is learned.
# Nor does where rendered words lie: which they are, the renderer's other options say.
MAY_DIFFER = (
    "resume", "run_dir", "trainer", "logger", "save_every", "log_every_steps", "data.data_dir", "if_slow",
    "render.cache",
)  # fmt: skip
LENGTH = ("budget", "epochs", "steps")
# Of how a model is built, what does not change what its weights mean, so that nobody needs to hear of it.
HARMLESS = {"keep_patches", "drop_path", "pretrained", "positions_from", "recompute", "ctc", "orders"}
HARMLESS |= {"smoothing", "symbols", "classes", "max_length"}  # which is for the codec to say, and the shapes


def conf_dir() -> Path:
    here = Path(__file__).resolve().parent
    for folder in (here / "conf", here.parent / "conf"):  # in a wheel; in a checkout
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError(f"vitocr's configuration (conf/) is missing beside {here}: install vitocr again")


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 1}} -> {"optim.lr": 1}"""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What stands between a run and its continuation, a line each."""
    old, new = flatten(there), flatten(here)
    keys = sorted(old.keys() | new.keys())
    return [
        f"{key}: {old.get(key)} there, {new.get(key)} here"
        for key in keys
        if old.get(key) != new.get(key) and not key.startswith(MAY_DIFFER) and key not in LENGTH
    ]


def differing(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that are not the same: name -> (there, here). What a file does not name it left at its default."""
    old, new = flatten(dict(there)), flatten(dict(here))
    return {name: (old[name], new[name]) for name in new if name in old and old[name] != new[name]}


def explain_hydra_error(message: str, keys: list[str]) -> str:
    """Hydra's complaint in our words: what was misspelt, what is near it, what there is."""
    group = re.search(r"(?:Could not find|In '.*?': Could not find) '(\w+)/([^']+)'", message)
    if group:
        name, choice = group.groups()
        folder = conf_dir() / name
        choices = sorted(path.stem for path in folder.glob("*.yaml"))
        near = difflib.get_close_matches(choice, choices, n=1)
        hint = f" Did you mean {name}={near[0]}?" if near else ""
        return f"there is no {name} `{choice}`.{hint} There are: {', '.join(choices)}"
    key = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", message)
    if key:
        full = re.search(r"full_key: (\S+)", message)
        word = key.group(1) or (full.group(1) if full else key.group(2))
        groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
        near = difflib.get_close_matches(word, [*keys, *groups], n=1)
        hint = f" Did you mean `{near[0]}`?" if near else " `python train.py --cfg job` prints all of them."
        return f"there is no option `{word}`.{hint}"
    return message.strip()
