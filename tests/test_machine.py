"""`trainer=auto` made concrete on machines of other shapes than this one, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitocr import machine
from vitocr.bench import compose_config
from vitocr.cores import multiplies_int8, usable_cores
from vitocr.errors import UserError
from vitocr.machine import make_plan
from vitocr.train import settle_length, settle_size

AUTO: dict[str, Any] = dict.fromkeys(("accelerator", "devices", "strategy", "precision", "threads", "workers"), "auto")
CPU = AUTO | {"accelerator": "cpu"}


@pytest.fixture(autouse=True)
def a_cpu_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cores=2)


def pretend(monkeypatch: pytest.MonkeyPatch, *, cores: int, bf16: bool = True, gpus: int = 0) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    monkeypatch.setattr(machine, "cpu_has_bf16", lambda: bf16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)


def test_a_cpu_trains_with_one_thread_a_rank_and_one_rank_a_core() -> None:
    plan = make_plan(AUTO, batch_size=128)
    assert (plan.accelerator, plan.devices, plan.threads, plan.workers) == ("cpu", 2, 1, 0)
    assert plan.strategy == ("ddp_fork" if hasattr(os, "fork") else "ddp")
    assert plan.world == 2


@pytest.mark.parametrize(
    ("cores", "batch_size", "devices", "threads"),
    [(1, 128, 1, 1), (4, 128, 4, 1), (4, 64, 2, 2), (2, 16, 1, 2), (64, 4096, 8, 8), (6, 128, 4, 1)],
)
def test_ranks_are_as_many_as_the_batch_feeds_and_threads_take_the_rest(
    monkeypatch: pytest.MonkeyPatch, cores: int, batch_size: int, devices: int, threads: int
) -> None:
    pretend(monkeypatch, cores=cores)
    plan = make_plan(CPU, batch_size=batch_size)
    assert (plan.devices, plan.threads) == (devices, threads)


def test_one_rank_needs_no_strategy() -> None:
    assert make_plan(CPU | {"devices": 1}, batch_size=128).strategy == "auto"
    assert make_plan(CPU | {"strategy": "single"}, batch_size=128).devices == 1  # trainer=cpu
    assert make_plan(CPU | {"strategy": "single"}, batch_size=128).threads == 2


def test_what_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cores=8)
    plan = make_plan(CPU | {"devices": 3, "threads": 2, "workers": 5, "precision": "32-true"}, batch_size=8)
    assert (plan.devices, plan.threads, plan.workers, plan.precision) == (3, 2, 5, "32-true")
    assert make_plan(CPU | {"threads": 4}, batch_size=128).devices == 2  # as many ranks as such threads fit


def test_devices_given_to_a_single_trainer_make_it_parallel() -> None:
    """`trainer=cpu trainer.devices=2` says what it wants clearly enough."""
    assert make_plan(CPU | {"strategy": "single", "devices": 2}, batch_size=128).strategy.startswith("ddp")


def test_a_model_is_sharded_over_gpus_or_else_over_cpu_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(AUTO | {"strategy": "fsdp"}, batch_size=128)
    assert (plan.accelerator, plan.devices, plan.strategy) == ("cpu", 2, "fsdp")
    pretend(monkeypatch, cores=16, gpus=4)
    plan = make_plan(AUTO | {"strategy": "fsdp"}, batch_size=128)
    assert (plan.accelerator, plan.devices, plan.strategy) == ("gpu", 4, "fsdp")


@pytest.mark.parametrize(("bf16", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_precision_is_what_the_cpu_is_fast_in(monkeypatch: pytest.MonkeyPatch, bf16: bool, precision: str) -> None:
    pretend(monkeypatch, cores=2, bf16=bf16)
    assert make_plan(CPU, batch_size=128).precision == precision


def test_gpus_are_taken_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cores=16, gpus=2)
    plan = make_plan(AUTO, batch_size=128)
    assert (plan.accelerator, plan.devices, plan.strategy, plan.workers) == ("gpu", 2, "ddp", 7)
    assert make_plan(CPU, batch_size=128).accelerator == "cpu"  # unless a CPU is asked for


def test_a_sweep_runs_its_jobs_in_one_process_each() -> None:
    assert make_plan(AUTO, batch_size=128, sweep=True).devices == 1


def test_a_sweep_over_two_devices_a_job_is_refused() -> None:
    with pytest.raises(UserError, match=r"sweep \(-m\).*trainer.devices=2.*Add trainer.devices=1"):
        make_plan(CPU | {"devices": 2}, batch_size=128, sweep=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "16-mixed"}, "16-mixed is thousands of times slower on a CPU: use bf16-mixed or 32-true"),
        ({"precision": "bf16-mixd"}, "precision=bf16-mixd: choose one of .*Did you mean 'bf16-mixed'?"),
        ({"accelerator": "gpu"}, "torch sees no GPU on this machine; use trainer=auto or trainer=cpu"),
        ({"accelerator": "cppu"}, "accelerator=cppu: choose auto, cpu or gpu. Did you mean 'cpu'?"),
        ({"strategy": "dpp"}, "strategy=dpp: choose one of .*Did you mean 'ddp'?"),
        ({"devices": 0}, "devices=0: give auto or a number from 1 up"),
        ({"threads": 0}, "threads=0: give auto or a number from 1 up"),
        ({"workers": -1}, "workers=-1: give auto or a number from 0 up"),
        ({"devices": "two"}, "devices=two: give auto or a number"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(CPU | changes, batch_size=128)


def test_more_gpus_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cores=8, gpus=1)
    with pytest.raises(UserError, match=r"trainer.devices=4: torch sees 1 GPU on this machine"):
        make_plan(AUTO | {"accelerator": "gpu", "devices": 4}, batch_size=128)


def test_a_containers_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    read_text = Path.read_text
    quotas = {"max 100000": 16, "250000 100000": 2, "50000 100000": 1, "9900000 100000": 16}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    for quota, cores in quotas.items():

        def fake(path: Path, *args: Any, quota: str = quota, **kwargs: Any) -> str:
            return f"{quota}\n" if path.name == "cpu.max" else read_text(path, *args, **kwargs)

        monkeypatch.setattr(Path, "read_text", fake)
        assert usable_cores() == cores


def test_memory_in_use_is_measured() -> None:
    # In a process of its own: this one's other threads give memory back whenever they like.
    script = """
from vitocr import machine
before = machine.memory_bytes()
held = b"x" * (64 * 2**20)
print((machine.memory_bytes() - before) / 2**20)
"""
    grown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert 60 < float(grown) < 80


def test_asking_to_keep_freed_memory_breaks_nothing_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def no_such_library(name: str) -> None:
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(machine.ctypes, "CDLL", no_such_library)
    monkeypatch.setattr(machine.sys, "platform", "linux")
    machine.keep_freed_memory()
    assert asked == ["libc.so.6"], "it was tried, and what came of that was nobody's trouble"


def test_whether_int8_is_multiplied_natively_is_read_from_the_flags_of_the_cpu(tmp_path: Path) -> None:
    told = {"flags\t\t: fpu sse avx2 avx512f avx512_vnni amx_tile": True, "flags\t: fpu avx2 avx512f": False, "": False}
    for number, (flags, expected) in enumerate(told.items()):
        file = tmp_path / f"cpuinfo{number}"
        file.write_text(f"processor\t: 0\nmodel name\t: avx512_vnni in a name is no flag\n{flags}\n")
        assert multiplies_int8(file) is expected
    assert multiplies_int8(tmp_path / "none") is False


def sized(words: list[str]) -> tuple[int, int]:
    """Width of the backbone and size of a batch that this command trains with."""
    config = compose_config(words)
    settle_length(config, words)
    settle_size(config, words)
    return config["backbone"]["dim"], config["batch_size"]


def test_a_short_run_on_words_takes_a_smaller_model_where_training_is_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["task=str", "budget=10m"]
    assert sized(words) == (256, 128) and not capsys.readouterr().out
    pretend(monkeypatch, cores=2, bf16=False)
    assert sized(words) == sized(["task=str"]) == (192, 64)
    assert "Less than 1h on a CPU without bf16: backbone=text_micro batch_size=64." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["task=str", "budget=1h"], (256, 128)),
        (["task=str", "steps=100"], (256, 128)),
        (["task=str", "budget=10m", "backbone=text_hybrid"], (256, 128)),
        (["task=str", "budget=10m", "backbone.dim=128"], (128, 128)),
        (["task=str", "budget=10m", "batch_size=32"], (256, 32)),
        (["task=str", "budget=10m", "init=str-tiny"], (256, 128)),
        (["task=str", "budget=10m", "if_slow=null"], (256, 128)),
        (["experiment=words", "budget=10m"], (256, 256)),
        (["task=cifar10", "budget=10m"], (192, 128)),
    ],
)
def test_whoever_says_more_than_the_task_keeps_the_size_it_has(
    monkeypatch: pytest.MonkeyPatch, words: list[str], size: tuple[int, int]
) -> None:
    pretend(monkeypatch, cores=2, bf16=False)
    assert sized(words) == size
