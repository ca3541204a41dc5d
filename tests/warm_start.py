"""Runs `train.py` for every line on its standard input, each in a process forked from this one.

What a run imports takes longer than most runs of the tests do, so it is imported once. `runs_kit.py` sends the lines
(JSON: words, cwd, environment, a folder); in that folder `output` grows and, when the run has ended, `code` appears.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401

import vitocr.train
import vitocr.training.setup

folders: dict[int, Path] = {}


def note_who_ended(*_: Any) -> None:
    while folders:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if (folder := folders.pop(pid)).exists():  # else nobody waits for it any more
            note(folder / "code", os.waitstatus_to_exitcode(status))


def note(path: Path, number: int) -> None:
    path.with_suffix(".part").write_text(str(number))
    path.with_suffix(".part").rename(path)  # whoever sees it sees all of it


def become_a_run(asked: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    output = os.open(Path(asked["folder"]) / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [str(Path(__file__).parents[1] / "train.py"), *asked["words"]]
    vitocr.train.STARTED = time.monotonic()
    vitocr.train.main()


def main() -> None:
    signal.signal(signal.SIGCHLD, note_who_ended)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # nobody is noted before it is known
        pid = os.fork()
        if pid:
            folders[pid] = Path(asked["folder"])
            note(folders[pid] / "pid", pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if pid == 0:
            become_a_run(asked)
            return


if __name__ == "__main__":
    main()
