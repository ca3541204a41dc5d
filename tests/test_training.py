"""The command as people use it: `python train.py ...` in fresh processes, killed, resumed, doubled, misspelt."""

import csv
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs_kit import ONE, ROOT, TINY, TWO, assert_same_weights, kill_after_first_checkpoint, run, weights

import vitocr
from vitocr.checkpoint import load_checkpoint
from vitocr.evaluate import evaluate


@pytest.mark.parametrize("ranks", [ONE, TWO], ids=["one process", "two DDP ranks"])
def test_a_killed_run_resumes_to_identical_weights(ranks: list[str], shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ranks, f"data.root={shapes}", "steps=300", "save_every_steps=2", "backbone.drop_path=0.2",
             "augment.ops=0.5", "ema=0.9"]  # fmt: skip
    run([*words, f"run_dir={tmp_path / 'whole'}"], tmp_path)
    broken = [*words, f"run_dir={tmp_path / 'broken'}"]
    step = kill_after_first_checkpoint(broken, tmp_path, tmp_path / "broken")
    assert 0 < step < 300, "the kill came too late to show anything"
    assert step % (54 // 8) or step % 2 == 0  # saved every second step, mid-epoch included
    assert f"resumed at step {step}" in run([*broken, "resume=auto"], tmp_path)
    assert_same_weights(tmp_path / "whole" / "last.ckpt", tmp_path / "broken" / "last.ckpt")
    whole, broken_ema = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["ema"] for name in ("whole", "broken")
    )
    assert all(torch.equal(whole[name], broken_ema[name]) for name in whole)
    with open(tmp_path / "broken" / "metrics.csv") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if not row["val_loss"]]
    assert steps == sorted(set(steps)) and steps[-1] == 300, "every step once on the curve"


def test_killing_the_command_leaves_no_rank_behind(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *TWO, f"data.root={shapes}", "steps=100000", "save_every_steps=1", f"run_dir={tmp_path / 'run'}"]
    kill_after_first_checkpoint(words, tmp_path, tmp_path / "run")
    time.sleep(0.5)
    alive = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path / "run") not in alive


def test_two_ranks_learn_what_one_process_learns(shapes: Path, tmp_path: Path) -> None:
    # Which patches and blocks are skipped is drawn per rank; everything else must agree to rounding.
    words = [*TINY, f"data.root={shapes}", "steps=12", "augment.cutmix=1", "augment.ops=0.5", "backbone.keep_patches=1"]
    run([*words, *ONE, "trainer.precision=32-true", f"run_dir={tmp_path / 'one'}"], tmp_path)
    run([*words, *TWO, "trainer.precision=32-true", f"run_dir={tmp_path / 'two'}"], tmp_path)
    one, two = weights(tmp_path / "one" / "last.ckpt"), weights(tmp_path / "two" / "last.ckpt")
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=0)


def test_ranks_with_unequal_shares_of_a_split_measure_it_rightly(shapes: Path, tmp_path: Path) -> None:
    """Seven validation images: one rank has three, the other four. Launched as on GPUs, not forked."""
    words = [*TINY, *TWO, "trainer.strategy=ddp", f"data.root={shapes}", "data.val_fraction=0.117", "steps=40"]
    output = run([*words, f"run_dir={tmp_path / 'run'}"], tmp_path)
    assert "val 7" in output
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())["val"]
    with open(tmp_path / "run" / "metrics.csv") as file:
        measured = {float(row["val_accuracy"]) for row in csv.DictReader(file) if row["val_accuracy"]}
    assert all(abs(7 * value - round(7 * value)) < 1e-5 for value in measured)
    assert max(measured) == pytest.approx(figures["accuracy"], abs=1e-6)


def test_a_budget_ends_on_time_and_goes_on_with_what_is_left(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}", "budget=22s", "save_every=1s", f"run_dir={tmp_path / 'run'}"]
    began = time.monotonic()
    kill_after_first_checkpoint(words, tmp_path, tmp_path / "run")
    time.sleep(0.2)
    spent = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["vitocr"]["provenance"]["seconds"]
    again = time.monotonic()
    run([*words, "resume=auto"], tmp_path)
    second_sitting = time.monotonic() - again
    assert second_sitting < 22 - spent + 8, "the second sitting had only the rest of the budget"
    assert time.monotonic() - began > 15, "but it used it"
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 12 < figures["train"]["seconds"] < 22


def test_a_run_leaves_everything_that_design_promises(shapes: Path, tmp_path: Path) -> None:
    # As it is typed, in a process of its own that imports what it needs.
    words = ["task=folder", f"data.root={shapes}", *TINY[3:], *ONE, "steps=30"]
    typed = [sys.executable, str(ROOT / "train.py"), *words]
    output = subprocess.run(typed, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240).stdout
    (folder,) = (tmp_path / "runs" / "folder").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "best.ckpt", "last.ckpt", "model.safetensors", "metrics.csv", "metrics.json",
            "samples.png", "confusion.png", "curve.png"} <= names  # fmt: skip
    figures = json.loads((folder / "metrics.json").read_text())
    assert figures["val"]["accuracy"] > 0.9, "red circles, green squares and blue triangles are easily told apart"
    assert figures["train"]["steps"] == 30 and figures["train"]["gflops_per_second"] > 0
    assert 0 < figures["train"]["peak_memory_bytes"] < 2e9
    assert "30" in output and "val" in output
    label = vitocr.load(folder)(shapes / "circle" / "03.png")
    assert label.name == "circle"


def test_confidences_are_calibrated_on_what_was_held_back(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run([*TINY, *ONE, f"data.root={shapes}", "data.val_fraction=0.85", "batch_size=4", "steps=30", f"run_dir={folder}"],
        tmp_path)  # fmt: skip
    model = vitocr.load(folder)
    calibration, measured = model.description["calibration"], json.loads((folder / "metrics.json").read_text())["val"]
    assert calibration["images"] == 51 and calibration["temperature"] != 1
    assert model.temperature == calibration["temperature"]
    again = evaluate(model, shapes, split="val")
    assert again["nll"] == pytest.approx(measured["nll"], abs=1e-3)
    assert again["ece"] == pytest.approx(measured["ece"], abs=1e-3), "the figures are of the confidences people get"


def test_tensorboard_gets_the_curve(shapes: Path, tmp_path: Path) -> None:
    words = [word for word in TINY if word != "logger=none"]
    run([*words, *ONE, f"data.root={shapes}", "steps=3", f"run_dir={tmp_path / 'run'}"], tmp_path)
    assert list((tmp_path / "run").glob("events.out.tfevents*"))


def test_a_sweep_runs_its_jobs_and_refuses_several_ranks(shapes: Path, tmp_path: Path) -> None:
    words = ["-m", *TINY, f"data.root={shapes}", "steps=2", "optim.lr=1e-3,2e-3"]
    run(words, tmp_path)
    runs = sorted((tmp_path / "runs" / "folder").iterdir())
    rates = {
        json.loads(json.dumps(vitocr.load(path).description))["provenance"]["config"]["optim"]["lr"] for path in runs
    }
    assert rates == {1e-3, 2e-3}
    refusal = run([*words, *TWO], tmp_path, code=2)
    assert "a sweep (-m) runs its jobs in one process each, but trainer.devices=2" in refusal


def test_resuming_with_other_options_is_refused_and_named(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}", "steps=4", f"run_dir={tmp_path / 'run'}"]
    run(words, tmp_path)
    refusal = run([*words, f"resume={tmp_path / 'run'}", "optim.lr=0.5"], tmp_path, code=2)
    assert "optim.lr: auto there, 0.5 here" in refusal
    assert "holds a run already" in run(words, tmp_path, code=2)


def test_a_run_that_goes_on_with_other_data_says_so_and_does_not_forget_it(shapes: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(shapes, data)
    words = [*TINY, *ONE, f"data.root={data}", f"run_dir={tmp_path / 'run'}"]
    run([*words, "steps=2"], tmp_path)
    for steps in (4, 6):
        (tmp_path / "run" / "metrics.json").unlink()
        if steps == 4:
            next(data.rglob("*.png")).unlink()
        said = run([*words, f"steps={steps}", "resume=auto"], tmp_path)
        assert ("data is no longer what this run began with" in said) == (steps == 4)
    _, description = load_checkpoint(tmp_path / "run" / "model.safetensors")
    (before,) = description["provenance"]["data_before"]
    assert before["until_step"] == 2
    assert before["fingerprints"] != description["provenance"]["data"]["fingerprints"]


@pytest.mark.parametrize("ranks", [ONE, TWO], ids=["one process", "two DDP ranks"])
def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_checkpoint(
    ranks: list[str], shapes: Path, tmp_path: Path
) -> None:
    words = [*TINY, *ranks, f"data.root={shapes}", "steps=50", "save_every_steps=1", "clip=0", "optim=adamw",
             "optim.lr=1e30", "optim.schedule.warmup=0.1", f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    output = run(words, tmp_path, code=2)
    assert "the loss is not a finite number at step" in output
    assert "The last good checkpoint is" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=cifr10"], "there is no task `cifr10`. Did you mean task=cifar10?"),
        (["backbone=vit_tny"], "there is no backbone `vit_tny`. Did you mean backbone=vit_tiny?"),
        (["bugdet=3m"], "there is no option `bugdet`. Did you mean `budget`?"),
        (["optim.lrr=3"], "there is no option `optim.lrr`. Did you mean `optim.lr`?"),
        (["budget=3m", "steps=2"], "budget and steps were given"),
        (["task=folder"], "task=folder needs data.root=..."),
        (["task=folder", "data.root=shapess"], "There is no data folder 'shapess'"),
        (["task=folder", "data.root={shapes}", "backbone.patch=7"], "does not divide into patches of 7x7"),
        (["task=folder", "data.root={shapes}", "backbone.heads=5"], "does not divide into heads=5"),
        (["task=folder", "data.root={shapes}", "head.pool=cls"], "add backbone.class_token=true"),
        (["task=folder", "data.root={shapes}", "resume=nowhere"], "there is no checkpoint nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_named_with_what_to_do(words: list[str], message: str, shapes: Path, tmp_path: Path) -> None:
    output = run([word.format(shapes=shapes) for word in words], tmp_path, code=2)
    assert message in output
    assert output.startswith("error: ") or "\nerror: " in output
    assert "Traceback" not in output
    assert not (tmp_path / "runs").exists(), "a mistake leaves no empty run behind"


def test_recomputing_activations_changes_no_weight_and_needs_a_backbone_of_blocks(shapes: Path, tmp_path: Path) -> None:
    words = [*TINY, *ONE, f"data.root={shapes}", "steps=6", "backbone.drop_path=0.2"]
    run([*words, f"run_dir={tmp_path / 'kept'}"], tmp_path)
    run([*words, "trainer.recompute=true", f"run_dir={tmp_path / 'again'}"], tmp_path)
    assert_same_weights(tmp_path / "kept" / "last.ckpt", tmp_path / "again" / "last.ckpt")
    told = run([*ONE, "task=str", "backbone=crnn", "head=ctc", "render.rows=8", "render.cache=null", "data.val_size=2",
                "steps=1", "trainer.recompute=true", f"run_dir={tmp_path / 'crnn'}"], tmp_path, code=2)  # fmt: skip
    assert "trainer.recompute=true works block by block" in told
