"""The self-describing file: what goes in comes out, and what is wrong with a file is said."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitocr.checkpoint import atomic_write, load_checkpoint, load_model, save_model
from vitocr.description import describe, read_description
from vitocr.errors import UserError
from vitocr.models.model import Model, build_model

SPEC = {
    "image_size": [32, 32],
    "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 8, "dim": 16, "depth": 1, "heads": 2},
    "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 3},
}


def described(**changes: Any) -> dict[str, Any]:
    description = describe(
        task="animals",
        kind="classify",
        model=SPEC,
        codec={"type": "classes", "names": ["cat", "dog", "고양이"]},
        preprocess={"size": (32, 32), "mean": np.array([0.5]), "resize": "stretch"},
        metrics={"test": {"accuracy": np.float64(0.9)}},
        provenance={"data": Path("somewhere")},
    )
    return description | changes


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    model = build_model(SPEC)
    for parameter in model.parameters():  # the head starts at zero, which would hide a mix-up
        torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.fixture
def saved(tmp_path: Path, model: Model) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, model.state_dict(), described())
    return path


def message(path: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_model(path)
    text = str(raised.value)
    assert str(path.name) in text
    return text


# --- what goes in comes out -----------------------------------------------------------------------------


def test_a_model_comes_back_bit_for_bit(saved: Path, model: Model) -> None:
    loaded, description = load_model(saved)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))
    assert not loaded.training
    assert description == described()


def test_a_model_can_be_read_by_whoever_may_read_other_files_of_its_owner(saved: Path) -> None:
    other = saved.with_name("other")
    other.touch()
    assert saved.stat().st_mode == other.stat().st_mode


def test_a_description_holds_plain_types_only() -> None:
    description = described()
    assert description["preprocess"]["size"] == [32, 32]
    assert type(description["metrics"]["test"]["accuracy"]) is float
    assert description["provenance"]["data"] == "somewhere"
    with pytest.raises(TypeError, match="plain values only, not object"):
        describe(task="t", kind="k", model={"x": object()}, codec={}, preprocess={})


def test_a_lightning_checkpoint_loads_with_weights_only_and_prefers_the_averaged_weights(
    tmp_path: Path, model: Model
) -> None:
    raw = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    other = {"loss.weight": torch.ones(1)}  # the module's own, no part of the model
    path = tmp_path / "last.ckpt"
    torch.save({"vitocr": described(), "state_dict": raw | other, "epoch": 3, "optimizer_states": []}, path)
    loaded, description = load_model(path)
    assert description == described()
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), raw.values(), strict=True))

    averaged = {name: torch.full_like(tensor, 7) for name, tensor in model.state_dict().items()}
    torch.save({"vitocr": described(), "state_dict": raw, "ema": averaged}, path)
    assert all((tensor == 7).all() for tensor in load_model(path)[0].state_dict().values())


def test_the_name_of_a_file_does_not_matter(saved: Path) -> None:
    renamed = saved.rename(saved.with_name("weights.bin"))
    assert load_checkpoint(renamed)[1] == described()


def test_a_model_that_began_pretrained_loads_without_fetching_weights_again(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def note(spec: dict[str, Any]) -> Model:
        asked.append(spec)
        return model

    monkeypatch.setattr("vitocr.models.model.build_model", note)
    spec = SPEC | {"backbone": {"_target_": "vitocr.models.timm_adapter.TimmViT", "pretrained": True}}
    save_model(tmp_path / "model.safetensors", model.state_dict(), described(model=spec))
    _, description = load_model(tmp_path / "model.safetensors")
    assert asked[0]["backbone"]["pretrained"] is False
    assert description["model"]["backbone"]["pretrained"] is True  # how it came about stays on record


def test_tied_and_transposed_weights_are_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    path = tmp_path / "tied.safetensors"
    save_model(path, {"a": base, "tied": base, "transposed": base.T, "row": base[1]}, described())
    state, _ = load_checkpoint(path)
    assert torch.equal(state["a"], base) and torch.equal(state["tied"], base)
    assert torch.equal(state["transposed"], base.T) and torch.equal(state["row"], base[1])


def test_a_description_is_read_without_torch(saved: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vitocr.description import read_description;"
        f"print(read_description(Path({str(saved)!r}))['task'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["animals", "False"]


# --- files that are wrong -------------------------------------------------------------------------------


def test_a_missing_file_is_answered_with_the_nearest_name(saved: Path) -> None:
    wrong = saved.with_name("modle.safetensors")
    assert "There is no checkpoint at" in message(wrong)
    assert "Did you mean 'model.safetensors'?" in message(wrong)


def test_a_file_that_is_not_a_checkpoint_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    assert "is not a vitocr checkpoint: it is neither a .safetensors nor a .ckpt file" in message(path)


def test_an_empty_file_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "best.ckpt"
    path.touch()
    assert "is empty (0 bytes): a copy or download of it was cut short" in message(path)


def test_weights_of_another_program_are_called_that(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(1)}, foreign)
    assert "not vitocr's description" in message(foreign)
    foreign = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {}}, foreign)
    assert "has no vitocr description of the model" in message(foreign)


def test_a_file_that_could_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    path = tmp_path / "evil.ckpt"
    torch.save({"vitocr": described(), "state_dict": Evil()}, path, pickle_module=pickle)
    assert "they can run any code" in message(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("share", [0.0005, 0.5, 0.999])
def test_a_truncated_safetensors_file_is_called_that(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: max(10, int(len(data) * share))])
    assert "is truncated" in message(saved)
    assert "cut short" in message(saved)


def test_a_truncated_ckpt_is_called_that(tmp_path: Path, model: Model) -> None:
    path = tmp_path / "best.ckpt"
    torch.save({"vitocr": described(), "state_dict": model.state_dict()}, path)
    path.write_bytes(path.read_bytes()[:-1000])
    assert "is truncated" in message(path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path, model: Model) -> None:
    newer = described(format=2, vitocr="9.0")
    path = tmp_path / "newer.safetensors"
    save_model(path, model.state_dict(), newer)
    assert "has checkpoint format 2, made by vitocr 9.0" in message(path)
    assert "reads up to format 1. Upgrade" in message(path)
    path = tmp_path / "newer.ckpt"
    torch.save({"vitocr": newer, "state_dict": {}}, path)
    assert "has checkpoint format 2" in message(path)


def test_an_incomplete_description_is_named(tmp_path: Path) -> None:
    description = described()
    del description["codec"], description["kind"]
    path = tmp_path / "odd.safetensors"
    save_model(path, {}, description)
    with pytest.raises(UserError, match="lacks kind, codec"):
        read_description(path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path, model: Model) -> None:
    state = model.state_dict()
    state["stranger"] = torch.zeros(1)
    state["head.logits.weight"] = torch.zeros(5, 16)
    del state["head.logits.bias"]
    path = tmp_path / "model.safetensors"
    save_model(path, state, described())
    text = message(path)
    assert "missing: head.logits.bias" in text
    assert "not part of the model: stranger" in text
    assert "head.logits.weight is (5, 16) instead of (3, 16)" in text


# --- disks that are full --------------------------------------------------------------------------------


def test_a_disk_that_fills_up_midway_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    atomic_write(path, lambda temporary: temporary.write_bytes(b"the first one"))

    def fills_the_disk(temporary: Path) -> None:
        temporary.write_bytes(b"half of the sec")
        raise OSError(28, os.strerror(28))

    with pytest.raises(UserError) as raised:
        atomic_write(path, fills_the_disk)
    text = str(raised.value)
    assert f"Could not write {path}: No space left on device." in text
    assert "MB free" in text and "The previous file is kept as it was." in text
    assert path.read_bytes() == b"the first one"
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
@pytest.mark.parametrize("kind", ["safetensors", "ckpt"])
def test_a_real_write_error_of_torch_or_safetensors_leaves_the_previous_file(tmp_path: Path, kind: str) -> None:
    """The operating system refuses the write, as a full disk does, inside the libraries' own native code."""
    path = tmp_path / f"model.{kind}"
    path.write_bytes(b"previous")
    code = f"""
import resource, sys, torch
from pathlib import Path
from vitocr.checkpoint import atomic_write, save_model
from vitocr.errors import UserError
big = {{"x": torch.zeros(1_000_000)}}
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
path = Path({str(path)!r})
try:
    if path.suffix == ".ckpt":
        atomic_write(path, lambda temporary: torch.save(big, temporary))
    else:
        save_model(path, big, {{}})
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"Could not write {path}: " in done.stdout
    assert "The previous file is kept as it was." in done.stdout
    assert path.read_bytes() == b"previous"
    assert os.listdir(tmp_path) == [path.name]


def test_a_bug_in_a_writer_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    def broken(temporary: Path) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        atomic_write(tmp_path / "x", broken)


def test_what_a_killed_process_left_behind_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    code = f"""
import os, signal
from vitocr.checkpoint import atomic_write
def writer(temporary):
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
atomic_write({str(tmp_path / "last.ckpt")!r}, writer)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert not (tmp_path / "last.ckpt").exists() and len(os.listdir(tmp_path)) == 1
    atomic_write(tmp_path / "last.ckpt", lambda temporary: temporary.write_bytes(b"whole"))
    assert os.listdir(tmp_path) == ["last.ckpt"]
