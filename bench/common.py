"""What the benches share: runs of train.py that are not done twice, each on a core of its own, and what they took."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEAK, WORDS = "peak_bytes.txt", "words.txt"  # beside what a run leaves itself
ONE_THREAD = ("trainer=cpu", "trainer.devices=1", "trainer.threads=1")


def memory_bytes(name: str, pid: int | str = "self") -> int:
    """Of a process: VmRSS is what it holds now, VmHWM the most it held. 0 of one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def forget_peak() -> None:
    """VmHWM starts again from here."""
    Path("/proc/self/clear_refs").write_text("5")


def figures_of(folder: Path) -> dict[str, Any] | None:
    """What a finished run measured; None before that."""
    path = folder / "metrics.json"
    return json.loads(path.read_text()) if path.exists() else None


def peak_of(folder: Path) -> int | None:
    """Most bytes that a run of `train_side_by_side` held; None if it ended when nobody was there to see."""
    path = folder / PEAK
    return int(path.read_text()) if path.exists() else None


def is_finished(folder: Path, words: Sequence[str]) -> bool:
    """Whether there is nothing left to do; what was done with other options is not mistaken for it."""
    if figures_of(folder) is None:
        return False
    noted = folder / WORDS
    if noted.exists() and noted.read_text().splitlines() != list(words):
        differ = sorted(set(words) ^ set(noted.read_text().splitlines()))
        sys.exit(f"{folder} holds a run with other options ({', '.join(differ)}): delete it, or keep runs elsewhere")
    return True


def start_training(folder: Path, words: Sequence[str], core: int | None = None) -> subprocess.Popen[bytes]:
    """train.py with its run and its log in `folder`, on one core if told; what was interrupted goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WORDS).write_text("".join(f"{word}\n" for word in words))
    command = [sys.executable, str(ROOT / "train.py"), *words, "logger=none", f"run_dir={folder}"]
    if (folder / "last.ckpt").exists():
        command.append(f"resume={folder}")
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=pin)


def train(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """The figures of a run on the whole machine, which is done unless it has finished before."""
    if not is_finished(folder, words):
        print(f"{time.strftime('%H:%M:%S')} {folder.name}: {' '.join(words)}", flush=True)
        if start_training(folder, words).wait():
            sys.exit(f"{folder.name} failed; see {folder / 'log.txt'}")
    figures = figures_of(folder)
    assert figures is not None
    return figures


def train_side_by_side(
    runs: Mapping[Path, Sequence[str]],
    *,
    cores: Sequence[int],
    finished: Callable[[Path], object] = lambda folder: None,
) -> list[Path]:
    """Those of the runs (folder -> words) that have not finished before, each with one thread on a core of its own.

    Returns the folders of runs that failed. `finished` is called after each of the others."""
    runs = {folder: [*ONE_THREAD, *words] for folder, words in runs.items()}
    todo = [folder for folder, words in runs.items() if not is_finished(folder, words)]
    running: dict[int, tuple[Path, subprocess.Popen[bytes]]] = {}
    peaks: dict[Path, int] = {}
    failed: list[Path] = []
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is reached
    try:
        while todo or running:
            for core in cores:
                if core not in running and todo:
                    folder = todo.pop(0)
                    print(f"{time.strftime('%H:%M:%S')} core {core}: {folder.name}, {len(todo)} to come", flush=True)
                    running[core] = folder, start_training(folder, runs[folder], core)
            for core, (folder, process) in list(running.items()):
                if process.poll() is None:
                    # Not what the kernel says at the end, which begins with what this process held at the start.
                    peaks[folder] = max(peaks.get(folder, 0), memory_bytes("VmHWM", process.pid))
                    continue
                del running[core]
                if process.returncode:
                    print(f"{folder.name} failed; see {folder / 'log.txt'}", flush=True)
                    failed.append(folder)
                    continue
                if peaks.get(folder):
                    (folder / PEAK).write_text(str(peaks[folder]))
                finished(folder)
            time.sleep(0.1)
    finally:
        for _, process in running.values():  # an interrupted bench leaves nobody behind on the cores
            process.terminate()
        signal.signal(signal.SIGTERM, before)
    return failed


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is words, the others are figures."""
    lines = [heading, ["-", *["-:"] * (len(heading) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def save(folder: Path, name: str, told: Mapping[str, Any], table: str) -> None:
    """`name`.json for those who go on with the figures, `name`.md for those who read them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(table, encoding="utf-8")
