"""What recomputation saves and what it costs: activations of a 12-layer model, and the time of a step. One command:

    python bench/recompute.py --out docs/records/ideas

Forward and backward pass of a batch through a ViT and its classifier, in processes of their own that take turns: with
all activations kept, and with `trainer.recompute=true`, which keeps what goes into each block and computes the rest
again. In each process

- the time is the median of `--steps` passes, and counts are over rounds;
- the activations are all memory that tensors take at the same time between the start of the forward and the end of
  the backward pass, less what was there before: weights, gradients and images. Every tensor that an operation makes
  is followed until it is freed, so what the backward pass makes anew is in it. This is not timed;
- as a second witness, how far the process itself grew in one pass (VmHWM). It also holds what libraries set aside;
- the gradients are hashed: equal hashes are equal to the last bit.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, forget_peak, memory_bytes, save
from ideas_tables import ENGLISH, recompute_table

WAYS = ("kept", "recomputed")


def live_bytes_mode() -> Any:
    """A mode under which the tensors that operations make are counted while they live: `.peak`, in bytes."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class LiveBytes(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.peak = 0
            self.known: weakref.WeakSet[Any] = weakref.WeakSet()

        def freed(self, size: int) -> None:
            self.now -= size

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            out = func(*args, **(kwargs or {}))
            for x in tree_leaves(out):
                if not isinstance(x, Tensor):
                    continue
                storage = x.untyped_storage()
                if id(storage) in given or storage in self.known:  # a view, or in place
                    continue
                self.known.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.freed, storage.nbytes())
            self.peak = max(self.peak, self.now)
            return out

    return LiveBytes()


def measure(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """In this process: seconds a pass, bytes of activations, and the gradients in short."""
    import torch
    from omegaconf import OmegaConf

    from vitocr.config import conf_dir
    from vitocr.heads.classify import ClassTargets
    from vitocr.machine import cpu_has_bf16, keep_freed_memory
    from vitocr.models.model import build_model

    keep_freed_memory()  # as in training
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    backbone: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "backbone" / f"{args.backbone}.yaml"))
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 10}
    model = build_model(
        {"image_size": [args.size, args.size], "backbone": backbone | {"depth": args.depth}, "head": head}
    ).train()
    for parameter in model.parameters():  # untrained, half of it is zero, and so would the gradients be
        torch.nn.init.normal_(parameter, std=0.05)
        parameter.grad = torch.zeros_like(parameter)  # there all along, as in a training that has begun
    model.backbone.recompute = way == "recomputed"  # type: ignore[assignment]
    images, targets = torch.randn(args.batch, 3, args.size, args.size), torch.arange(args.batch) % 10
    bf16 = args.precision == "bf16" or (args.precision == "auto" and cpu_has_bf16())

    def once(count: int = args.batch) -> float:
        model.zero_grad(set_to_none=False)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model.loss(images[:count], ClassTargets(targets[:count]))["loss"]
        loss.backward()
        return time.perf_counter() - began

    once(1)  # what libraries set aside for themselves comes with their first use
    forget_peak()
    before = memory_bytes("VmRSS")
    once()
    grown = memory_bytes("VmHWM") - before
    took = [once() for _ in range(args.steps)]
    with live_bytes_mode() as alive:
        once()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        assert parameter.grad is not None
        digest.update(parameter.grad.numpy().tobytes())
    return {
        "seconds": statistics.median(took),
        "activation_bytes": alive.peak,
        "grown_bytes": grown,
        "gradients": digest.hexdigest(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "precision": "bf16" if bf16 else "fp32",
    }


def measured_apart(way: str, words: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).resolve()), *words, "--one", way]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"the passes with activations {way} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summarise(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    ways = {
        way: {
            "seconds": statistics.median(one["seconds"] for one in found),
            "activation_bytes": found[0]["activation_bytes"],
            "grown_bytes": statistics.median(one["grown_bytes"] for one in found),
        }
        for way, found in rounds.items()
    }
    kept, again = ways["kept"], ways["recomputed"]
    return {
        "ways": ways,
        "memory_saved": 1 - again["activation_bytes"] / kept["activation_bytes"],
        "grown_less": 1 - again["grown_bytes"] / max(kept["grown_bytes"], 1),
        "time_added": again["seconds"] / kept["seconds"] - 1,
        "same_gradients": len({one["gradients"] for found in rounds.values() for one in found}) == 1,
        "parameters": rounds["kept"][0]["parameters"],
        "precision": rounds["kept"][0]["precision"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="vit_tiny", help="a file of conf/backbone")
    parser.add_argument("--depth", type=int, default=12, help="layers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=32, help="of the images, in pixels")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto", help="auto: as training does")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="passes that are timed, each round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="folder for recompute.json and recompute.md")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args)))
        return
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way, found in rounds.items():
            found.append(measured_apart(way, sys.argv[1:]))
            print(f"round {number + 1}  {way:10} {1000 * found[-1]['seconds']:8.1f} ms", file=sys.stderr, flush=True)
    settings = {name: getattr(args, name) for name in ("backbone", "depth", "batch", "size", "threads", "rounds")}
    told = summarise(rounds) | {"settings": settings}
    table = recompute_table(told, ENGLISH)
    print(table, end="")
    if args.out:
        save(args.out, "recompute", told, table)
    if not told["same_gradients"]:
        sys.exit("gradients differ")


if __name__ == "__main__":
    main()
