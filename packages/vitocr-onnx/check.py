"""Whether an environment without torch reads: run by its own Python, with nothing but what vitocr-onnx brings.

    light/bin/python packages/vitocr-onnx/check.py model.onnx words/ --expect said.jsonl

words: a folder of images. said.jsonl: what the original says of them, written where torch is:

    vitocr predict RUN words/ --json --out said.jsonl
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitocr

TRAINING = ("torch", "torchvision", "timm", "lightning", "hydra", "albumentations", "cv2", "safetensors", "matplotlib")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
TOLERANCE = 1e-3  # of confidences


def said(result: Any) -> tuple[str, float]:
    """The text or class, and how sure."""
    told = result if isinstance(result, dict) else result.to_dict()
    return told["text"] if "text" in told else told["name"], told["confidence"]


def same(one: Any, other: Any) -> bool:
    (a, sure), (b, as_sure) = said(one), said(other)
    return a == b and abs(sure - as_sure) <= TOLERANCE


def check(what: str, fine: bool) -> None:
    print(f"{'ok' if fine else 'FAILED'}: {what}", flush=True)
    if not fine:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--expect", type=Path)
    args = parser.parse_args()

    there = [name for name in TRAINING if importlib.util.find_spec(name) is not None]
    check("nothing of what training takes is installed" + f", but {', '.join(there)}" * bool(there), not there)
    files = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in IMAGES)
    check(f"there are images in {args.images}", len(files) > 0)

    model = vitocr.load(args.model)
    results = model(files, batch_size=4)
    check(f"{len(files)} images are answered", all(results) and len(results) == len(files))
    answers = list(zip(files, results, strict=True))
    alone = [model(path) for path in files]
    check("one by one as in batches", all(map(same, results, alone)))
    arrays = [np.asarray(Image.open(path).convert("RGB")) for path in files[:4]]
    check("arrays as files", all(map(same, results, model(arrays))))
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "broken.png"
        broken.write_bytes(b"these are not pixels")
        first, failure, second = model([files[0], broken, files[-1]])
        fine = isinstance(failure, vitocr.Failure) and same(first, results[0]) and same(second, results[-1])
        check("a broken file gets an error entry, and its neighbours their answers", fine)

    command = [sys.executable, "-I", "-m", "vitocr.cli", "predict", args.model, str(args.images), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    check(f"the command ends well{done.stderr and f', but says {done.stderr}'}", done.returncode == 0)
    lines = {Path(line["source"]): line for line in map(json.loads, done.stdout.splitlines())}
    check("the command says the same", all(same(lines[path], result) for path, result in answers))

    if args.expect:
        lines = {Path(line["source"]).name: line for line in map(json.loads, args.expect.read_text().splitlines())}
        differing = [path.name for path, result in answers if not same(lines[path.name], result)]
        check(f"as the original says{f', but for {differing[:5]}' if differing else ''}", not differing)
    check("torch was not looked for", "torch" not in sys.modules)


if __name__ == "__main__":
    main()
