"""How time and memory of attention grow with the length: dense against the sparse patterns, in one run.

    python bench/attention_scaling.py --out docs/records/ideas

One forward and backward pass of the attention itself (queries, keys and values given), in fp32, each length
and kind in a process of its own so that its peak memory is its own; kinds take turns within a round, and the
median over rounds counts. Writes scaling.json, scaling.md and scaling.png: seconds, peak memory, and the
exponents fitted to both over the lengths (1 is linear, 2 is quadratic). 16,384 tokens of dense attention need 8 GB.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, forget_peak, markdown, memory_bytes, save

KINDS = ("dense", "strided", "fixed", "window")
LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384)
COMPARED = 4_096


def measure(kind: str, tokens: int, *, heads: int, dim: int, threads: int, seconds: float) -> dict[str, float]:
    """Of this process: seconds a pass, and by how many bytes it grew at its largest."""
    import torch
    from torch import Tensor

    from vitocr.machine import keep_freed_memory
    from vitocr.models.attention import attend
    from vitocr.models.patterns import Pattern, span_for
    from vitocr.models.sparse import attend_sparse

    keep_freed_memory()  # as in training
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    pattern = Pattern(kind, span_for(kind, tokens)) if kind != "dense" else None

    def once(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> float:
        began = time.perf_counter()
        out = attend(q, k, v) if pattern is None else attend_sparse(q, k, v, pattern)
        out.backward(grad)
        q.grad = k.grad = v.grad = None
        return time.perf_counter() - began

    def inputs(length: int) -> list[Tensor]:
        made = [torch.randn(1, heads, length, dim) for _ in range(4)]
        return [(made[0] * dim**-0.5).requires_grad_(), *(x.requires_grad_() for x in made[1:3]), made[3]]

    once(*inputs(min(tokens, 256)))  # what libraries set aside for themselves comes with their first use
    given = inputs(tokens)
    forget_peak()
    before = memory_bytes("VmRSS")
    once(*given)
    peak = memory_bytes("VmHWM") - before
    took: list[float] = []
    while len(took) < 3 or sum(took) < seconds:
        took.append(once(*given))
    return {"seconds": statistics.median(took), "bytes": peak}


def measured_apart(kind: str, tokens: int, args: argparse.Namespace) -> dict[str, float]:
    own = ["--one", kind, str(tokens), "--heads", str(args.heads), "--dim", str(args.dim)]
    command = [sys.executable, __file__, *own, "--threads", str(args.threads), "--seconds", str(args.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{kind} attention over {tokens} tokens failed:\n{done.stderr}")
    return json.loads(done.stdout)


def exponent(lengths: list[int], values: list[float]) -> float:
    """The slope of the straight line through log(value) over log(length), by least squares."""
    # A process that had room enough did not grow at all.
    x, y = [math.log(n) for n in lengths], [math.log(max(value, 1e-9)) for value in values]
    return statistics.linear_regression(x, y).slope


def summarise(rounds: dict[str, dict[int, list[dict[str, float]]]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind, by_length in rounds.items():
        lengths = sorted(by_length)
        middle = {
            what: [statistics.median(one[what] for one in by_length[n]) for n in lengths]
            for what in ("seconds", "bytes")
        }
        told[kind] = {
            "lengths": lengths,
            **middle,
            "time_exponent": exponent(lengths, middle["seconds"]),
            "memory_exponent": exponent(lengths, middle["bytes"]),
        }
    for kind in told:
        if COMPARED in told[kind]["lengths"] and "dense" in told:
            at = told[kind]["lengths"].index(COMPARED)
            told[kind]["times_faster"] = told["dense"]["seconds"][at] / told[kind]["seconds"][at]
    return told


def table(told: dict[str, Any]) -> str:
    lengths = next(iter(told.values()))["lengths"]
    rows = []
    for kind, row in told.items():
        cells = [f"{1000 * s:,.1f} ms, {b / 2**20:,.0f} MB" for s, b in zip(row["seconds"], row["bytes"], strict=True)]
        fitted = f"time {row['time_exponent']:.2f}, memory {row['memory_exponent']:.2f}"
        faster = f"{row['times_faster']:.1f} x" if "times_faster" in row else ""
        rows.append([kind, *cells, fitted, faster])
    heading = ["attention", *(f"{n:,}" for n in lengths), "exponent", f"at {COMPARED:,} against dense"]
    return markdown(heading, rows)


def draw(told: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), dpi=110, facecolor="white", layout="constrained")
    titles = {"seconds": "seconds, forward and backward", "bytes": "peak memory, bytes"}
    for axes, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for kind, row in told.items():
            axes.loglog(row["lengths"], row[what], "o-", markersize=4, linewidth=1.5, label=kind)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("tokens", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(color="#e4e7eb", linewidth=0.6)
        axes.spines[:].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, each time, at least three passes")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64, help="of a head")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="folder for scaling.json and scaling.md")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "TOKENS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        kind, tokens = args.one
        sizes = {"heads": args.heads, "dim": args.dim, "threads": args.threads}
        print(json.dumps(measure(kind, int(tokens), **sizes, seconds=args.seconds)))
        return
    rounds: dict[str, dict[int, list[dict[str, float]]]] = {kind: {n: [] for n in args.lengths} for kind in args.kinds}
    for number in range(args.rounds):
        for tokens in args.lengths:
            for kind in args.kinds:
                found = measured_apart(kind, tokens, args)
                rounds[kind][tokens].append(found)
                told = f"{1000 * found['seconds']:9.1f} ms {found['bytes'] / 2**20:7.0f} MB"
                print(f"round {number + 1}  {tokens:6} tokens  {kind:8} {told}", file=sys.stderr, flush=True)
    told = summarise(rounds)
    print(table(told))
    if args.out:
        settings = {"heads": args.heads, "dim": args.dim, "threads": args.threads, "rounds": args.rounds}
        save(args.out, "scaling", {"settings": settings, "kinds": told}, table(told))
        draw(told, args.out / "scaling.png")


if __name__ == "__main__":
    main()
