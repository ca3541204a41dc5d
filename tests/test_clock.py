"""Time: how it is written, how far training is, and what the learning rate does meanwhile."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from vitocr.errors import UserError
from vitocr.training.callbacks import Timekeeper
from vitocr.training.clock import Clock, learning_rate_factor, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        ("90s", 90),
        ("30m", 1800),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("30 m", 1800),
        (" 2H ", 7200),
        ("1d", 86400),
        ("1h0m30s", 3630),
    ],
)
def test_a_time_is_written_as_people_write_it(text: Any, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "soon", "30min", "-5", "-5m", "1e3", "1.2.3", "1,5h", "30m!", "1 30", "1h30"]
)
def test_what_is_not_a_time_is_quoted_with_examples(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_seconds(text)
    assert str(error.value) == f"budget={text} is not a time: write it as 90s, 30m, 2h or 1h30m"


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_learning_rate_goes_up_then_down_to_its_end(decay: str) -> None:
    values = [learning_rate_factor(i / 100, warmup=0.1, decay=decay, final=0.1) for i in range(101)]
    assert values[0] == pytest.approx(0.02)  # never zero: the first step should teach something
    assert values[5] == pytest.approx(0.5)
    assert values[10] == max(values) == pytest.approx(1.0)
    assert values[100] == pytest.approx(0.1)
    assert values[:11] == sorted(values[:11])
    assert values[10:] == sorted(values[10:], reverse=True)


def test_linear_is_a_straight_line_and_cosine_holds_on_longer() -> None:
    def at(progress: float, decay: str) -> float:
        return learning_rate_factor(progress, warmup=0.0, decay=decay)

    assert at(0.25, "linear") == pytest.approx(0.75)
    assert at(0.25, "cosine") == pytest.approx(0.853553)
    assert at(0.5, "linear") == pytest.approx(at(0.5, "cosine")) == pytest.approx(0.5)
    assert at(0.75, "cosine") < at(0.75, "linear")
    assert at(1.0, "cosine") == pytest.approx(0.0)


def test_a_schedule_that_only_warms_up_ends_at_its_end() -> None:
    assert learning_rate_factor(1.0, warmup=1.0, decay="linear", final=0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_a_misspelt_decay_is_refused_at_the_first_step(progress: float) -> None:
    with pytest.raises(UserError, match="decay=cosin: choose linear or cosine"):
        learning_rate_factor(progress, warmup=0.1, decay="cosin")


def test_progress_counted_in_steps_knows_nothing_of_time() -> None:
    clock = Clock(steps=10, started=time.monotonic() - 1e6)
    assert clock.update(step=3, elapsed_s=1e6) == pytest.approx(0.3)
    assert clock.update(step=10, elapsed_s=0.0) == 1.0
    assert clock.update(step=11, elapsed_s=0.0) == 1.0


def test_progress_counted_in_seconds_knows_nothing_of_steps() -> None:
    clock = Clock(budget_s=100.0, started=time.monotonic())
    assert clock.update(step=10**6, elapsed_s=25.0) == pytest.approx(0.25)
    assert clock.update(step=10**6, elapsed_s=101.0) == 1.0


def test_the_end_of_a_budget_is_kept_for_evaluating_and_saving() -> None:
    clock = Clock(budget_s=100.0, started=time.monotonic())
    clock.reserve_s = 20.0
    assert clock.update(step=1, elapsed_s=40.0) == pytest.approx(0.5)
    assert clock.update(step=2, elapsed_s=80.0) == 1.0


def test_progress_never_goes_back() -> None:
    """The reserve is measured anew at every validation, and may shrink."""
    clock = Clock(budget_s=100.0, started=time.monotonic())
    clock.reserve_s = 50.0
    assert clock.update(step=1, elapsed_s=40.0) == pytest.approx(0.8)
    clock.reserve_s = 10.0
    assert clock.update(step=2, elapsed_s=45.0) == pytest.approx(0.8)
    assert clock.update(step=3, elapsed_s=81.0) == pytest.approx(0.9)


def test_a_reserve_larger_than_the_budget_ends_training_at_once() -> None:
    clock = Clock(budget_s=5.0, started=time.monotonic())
    clock.reserve_s = 50.0
    assert clock.update(step=1, elapsed_s=2.0) == 1.0


def test_a_resumed_budget_counts_what_earlier_sittings_spent() -> None:
    clock = Clock(budget_s=100.0, started=time.monotonic() - 10.0)
    clock.spent_before_s = 30.0
    assert clock.elapsed_s() == pytest.approx(40.0, abs=0.5)


def test_what_is_left_is_told_from_what_is_done() -> None:
    clock = Clock(steps=10, started=time.monotonic())
    clock.update(step=4, elapsed_s=20.0)
    assert clock.remaining_s(20.0) == pytest.approx(30.0)


def test_what_is_left_counts_neither_rendering_beforehand_nor_the_pace_of_an_earlier_sitting() -> None:
    clock = Clock(steps=10, started=time.monotonic())
    clock.begin(step=0, elapsed_s=500.0)
    clock.update(step=4, elapsed_s=520.0)
    assert clock.remaining_s(520.0) == pytest.approx(30.0)
    resumed = Clock(steps=10, started=time.monotonic())
    resumed.begin(step=5, elapsed_s=900.0)
    resumed.update(step=6, elapsed_s=902.0)
    assert resumed.remaining_s(902.0) == pytest.approx(8.0)


def test_of_a_budget_what_is_left_is_what_has_not_been_spent_or_kept_for_the_end() -> None:
    clock = Clock(budget_s=100.0, started=time.monotonic())
    clock.begin(step=0, elapsed_s=30.0)
    clock.reserve_s = 20.0
    clock.update(step=4, elapsed_s=50.0)
    assert clock.remaining_s(50.0) == pytest.approx(30.0)
    assert clock.remaining_s(85.0) == 0.0


def tell_progress(rank: int, world: int, folder: str) -> None:
    """A rank that began a little later than the first, and whose stopwatch found validation to take longer."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    clock = Clock(budget_s=100.0, started=time.monotonic() - 50 + rank)
    clock.reserve_s = 10.0 + 20 * rank
    timekeeper = Timekeeper(clock, sync_every=1, last_checkpoint=Path(folder) / "last.ckpt")
    trainer = SimpleNamespace(world_size=world, global_step=7, should_stop=False)
    module: Any = SimpleNamespace(
        global_rank=rank, trainer=trainer, device=torch.device("cpu"), told={"loss": torch.ones(())}
    )
    timekeeper.on_train_batch_end(trainer, module, None, None, 0)  # type: ignore[arg-type]
    torch.save(clock.progress, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_all_ranks_are_as_far_as_the_first_or_one_would_stop_and_the_others_wait_for_it(tmp_path: Path) -> None:
    start_processes(tell_progress, (2, str(tmp_path)), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second, "to the last bit"
    assert first == pytest.approx(50 / 90, abs=0.02)
