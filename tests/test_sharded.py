"""`trainer=fsdp` on two CPU ranks: a run like any other, only that no rank holds the whole of it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from runs_kit import ONE, TINY, TWO, assert_same_weights, kill_after_first_checkpoint, run, weights
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes

import vitocr
from vitocr.models.model import build_model
from vitocr.training.sharded import like, shard, whole

SHARDED = ["trainer=fsdp", "trainer.devices=2", "trainer.threads=1", "trainer.accelerator=cpu"]
STEPS = 24
# Which patches are skipped is drawn per rank; everything else must agree to rounding.
EXACT = [*TINY, "trainer.precision=32-true", "backbone.keep_patches=1", "augment.cutmix=1", "ema=0.9",
         f"steps={STEPS}", "save_every_steps=4"]  # fmt: skip


@pytest.fixture(scope="module")
def one_process(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    run([*EXACT, *ONE, f"data.root={shapes}", f"run_dir={folder / 'run'}"], folder)
    return folder / "run"


@pytest.fixture(scope="module")
def two_shards(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run([*EXACT, *SHARDED, f"data.root={shapes}", f"run_dir={folder / 'run'}"], folder)
    return folder / "run"


def killed(ranks: list[str], shapes: Path, run_dir: Path) -> int:
    words = [*EXACT, *ranks, f"data.root={shapes}", f"run_dir={run_dir}"]
    step = kill_after_first_checkpoint(words, run_dir.parent, run_dir, later_s=0)
    assert 0 < step < STEPS, "the kill came too late to show anything"
    return step


def go_on(ranks: list[str], shapes: Path, run_dir: Path) -> str:
    return run([*EXACT, *ranks, f"data.root={shapes}", f"resume={run_dir}"], run_dir.parent)


def saved(run_dir: Path) -> dict[str, Any]:
    return torch.load(run_dir / "last.ckpt", weights_only=True)


def assert_equal_to_rounding(one: Path, other: Path) -> None:
    """Weights, their average and the optimiser's state, all of them whole tensors under the same names."""
    a, b = saved(one), saved(other)
    left, right = ({"weights": c["state_dict"], "ema": c["ema"]} | c["optimizer_states"][0]["state"] for c in (a, b))
    assert left.keys() == right.keys()
    for part in left:
        assert left[part].keys() == right[part].keys()
        for name, value in right[part].items():
            assert type(value) is torch.Tensor
            torch.testing.assert_close(value, left[part][name], atol=2e-5, rtol=0)


def test_shards_learn_what_one_process_learns(one_process: Path, two_shards: Path) -> None:
    assert_equal_to_rounding(one_process, two_shards)


def test_a_sharded_run_leaves_one_file_that_loads_anywhere(one_process: Path, two_shards: Path, shapes: Path) -> None:
    shipped = load_file(two_shards / "model.safetensors")
    trained = torch.load(two_shards / "best.ckpt", weights_only=True)["ema"]
    assert shipped.keys() == trained.keys()
    assert all(torch.equal(shipped[name], trained[name]) for name in trained)
    image = shapes / "circle" / "03.png"
    one, two = (vitocr.load(folder / "model.safetensors")(image) for folder in (one_process, two_shards))
    assert two.name == one.name
    assert two.confidence == pytest.approx(one.confidence, abs=1e-3)


def test_killed_and_resumed_it_ends_in_identical_weights_and_under_ddp_in_the_same_to_rounding(
    two_shards: Path, one_process: Path, shapes: Path, tmp_path: Path
) -> None:
    step = killed(SHARDED, shapes, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert f"resumed at step {step}" in go_on(SHARDED, shapes, tmp_path / "run")
    assert_same_weights(two_shards / "last.ckpt", tmp_path / "run" / "last.ckpt")
    before, after = saved(two_shards)["ema"], saved(tmp_path / "run")["ema"]
    assert all(torch.equal(before[name], after[name]) for name in before)

    go_on(TWO, shapes, tmp_path / "other")
    assert_equal_to_rounding(one_process, tmp_path / "other")


def test_a_run_of_ddp_goes_on_in_shards(one_process: Path, shapes: Path, tmp_path: Path) -> None:
    step = killed(TWO, shapes, tmp_path / "run")
    assert f"resumed at step {step}" in go_on(SHARDED, shapes, tmp_path / "run")
    assert_equal_to_rounding(one_process, tmp_path / "run")


def test_a_stem_and_its_running_statistics_are_trained_in_shards(shapes: Path, tmp_path: Path) -> None:
    stem = ["backbone=hybrid", "backbone.stem=[[8,1],[16,2]]", "backbone.patch=4"]
    run([*TINY, *SHARDED, *stem, f"data.root={shapes}", "steps=12", f"run_dir={tmp_path / 'run'}"], tmp_path)
    trained = weights(tmp_path / "run" / "last.ckpt")
    assert trained["model.backbone.stem.layers.1.num_batches_tracked"] == 12
    assert trained["model.backbone.stem.layers.1.running_mean"].abs().max() > 0
    assert vitocr.load(tmp_path / "run")(shapes / "circle" / "03.png").name in ("circle", "square", "triangle")


def local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def shard_on_a_rank(rank: int, folder: str, backbone: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    module: Any = L.LightningModule()
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 3}
    module.model = build_model({"image_size": [32, 32], "backbone": backbone, "head": head})
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    shard(module, init_device_mesh("cpu", (2,)))
    after = module.state_dict()
    report = {
        "units": [name for name, part in module.named_modules() if isinstance(part, FSDPModule)],
        "held": sum(local(p).numel() for p in module.parameters()) / sum(p.numel() for p in module.parameters()),
        "joined": {name: value for name, value in whole(after).items() if rank == 0},
        "cut": all(torch.equal(local(like(before[name], value)), local(value)) for name, value in after.items()),
        "before": before,
    }
    torch.save(report, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backbone", "blocks"),
    [
        ({"_target_": "vitocr.models.vit.ViT", "dim": 16, "depth": 3, "heads": 2, "stem": [[8, 2]]}, "blocks"),
        ({"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "test_vit"}, "vit.blocks"),
    ],
    ids=["ours", "timm"],
)
def test_a_rank_holds_its_share_and_gathers_block_by_block(
    backbone: dict[str, Any], blocks: str, tmp_path: Path
) -> None:
    start_processes(shard_on_a_rank, (str(tmp_path), backbone), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for report in (first, second):
        assert report["units"][:2] == ["", f"model.backbone.{blocks}.0"] and len(report["units"]) > 3
        assert all(name.startswith(f"model.backbone.{blocks}.") for name in report["units"][1:])
        assert 0.4 < report["held"] < 0.6
        assert report["cut"], "a whole tensor is cut as the weights are"
    joined = first["joined"]
    assert joined.keys() == first["before"].keys()
    assert all(torch.equal(value, first["before"][name]) for name, value in joined.items())


def test_other_trainers_do_not_import_it() -> None:
    script = "import sys, vitocr.training.setup; print('vitocr.training.sharded' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
