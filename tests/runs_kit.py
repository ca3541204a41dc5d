"""`python train.py ...` as the tests run it: started, waited for, killed; and what it leaves, compared."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TINY = [
    "task=folder", "augment=batch", "logger=none", "preprocess.size=[16,16]", "preprocess.resize=stretch",
    "batch_size=8", "backbone.dim=32", "backbone.depth=2", "backbone.heads=2", "log_every_steps=1",
]  # fmt: skip
ONE = ["trainer=cpu", "trainer.threads=1"]
TWO = ["trainer=ddp", "trainer.devices=2", "trainer.threads=1", "trainer.accelerator=cpu"]


@functools.cache
def warm_start() -> subprocess.Popen[str]:
    """One for all tests of this process; it ends when its input does."""
    return subprocess.Popen([sys.executable, str(ROOT / "tests" / "warm_start.py")], stdin=subprocess.PIPE, text=True)


class Run:
    """A process of train.py."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory()  # gone with this object
        self.folder = Path(self._scratch.name)
        asked = {"words": words, "cwd": str(cwd), "environment": dict(os.environ), "folder": str(self.folder)}
        server = warm_start()
        assert server.stdin is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        self.pid = self._number("pid", timeout_s=120)

    def poll(self) -> int | None:
        path = self.folder / "code"
        return int(path.read_text()) if path.exists() else None

    def wait(self, *, timeout_s: float = 240) -> int:
        return self._number("code", timeout_s=timeout_s)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text() if path.exists() else ""

    def _number(self, name: str, *, timeout_s: float) -> int:
        path, give_up = self.folder / name, time.monotonic() + timeout_s
        while not path.exists():
            assert warm_start().poll() is None, "the process that starts runs has ended"
            if time.monotonic() > give_up:
                raise TimeoutError(f"after {timeout_s} s:\n{self.output}")
            time.sleep(0.01)
        return int(path.read_text())


def run(words: list[str], cwd: Path, *, code: int = 0) -> str:
    """What a run said, which ended with this code."""
    process = Run(words, cwd)
    assert process.wait() == code, process.output
    return process.output


def kill_after_first_checkpoint(words: list[str], cwd: Path, run_dir: Path, *, later_s: float = 0.3) -> int:
    """Start a run, `kill -9` it some time behind its first checkpoint, return the step it had saved."""
    process = Run(words, cwd)
    give_up = time.monotonic() + 120
    while not (run_dir / "last.ckpt").exists():
        assert process.poll() is None and time.monotonic() < give_up, process.output
        time.sleep(0.01)
    time.sleep(later_s)
    process.kill()
    return torch.load(run_dir / "last.ckpt", weights_only=True)["global_step"]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["state_dict"]


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
