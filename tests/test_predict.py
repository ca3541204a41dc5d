"""Images in, Labels out, whatever people call an image."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_kit import BACKBONE, CHARACTERS, HEADS, SIZE
from PIL import Image

import vitocr
from vitocr.checkpoint import save_model
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.inference.run_torch import in_bf16
from vitocr.models.model import build_model
from vitocr.predict import Predictor
from vitocr.results import Failure, Label, Reading

NAMES = [f"class {i}" for i in range(7)]
SPEC = {
    "image_size": [32, 32],
    "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 8, "dim": 32, "depth": 2, "heads": 2},
    "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 7},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    model = build_model(SPEC)
    for parameter in model.parameters():  # the head starts at zero and would answer every image alike
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(model.get_parameter("head.logits.weight"), std=1)
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    preprocess = {"size": [32, 32], "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch"}
    description = describe(
        task="toys",
        kind="classify",
        model=SPEC,
        codec={"type": "classes", "names": NAMES},
        preprocess=preprocess | {"interpolation": "bilinear"},
    )
    save_model(path, model.state_dict(), description)
    return path


@pytest.fixture(scope="module")
def predictor(file: Path) -> Predictor:
    return vitocr.load(file, device="cpu")


def picture(seed: int, height: int = 32, width: int = 32) -> np.ndarray:
    """Random blocks: they differ from each other even when shrunk."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.array(Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST))


def same(a: Any, b: Any) -> bool:
    """To float tolerance: sums may run in another order in a batch of another size."""
    return bool(a.name == b.name and a.confidence == pytest.approx(b.confidence, abs=1e-5))


# --- every kind of input --------------------------------------------------------------------------------


def test_an_image_gives_the_same_label_in_every_form(predictor: Predictor, tmp_path: Path) -> None:
    pixels = picture(0)
    path = tmp_path / "one.png"
    Image.fromarray(pixels).save(path)
    rgba = np.dstack([pixels, np.full((32, 32), 255, np.uint8)])
    forms: list[Any] = [
        path,
        str(path),
        pixels,
        Image.fromarray(pixels),
        rgba,
        pixels.astype(np.float32) / 255,
        torch.from_numpy(pixels).permute(2, 0, 1),
        torch.from_numpy(pixels).permute(2, 0, 1).float() / 255,
        torch.from_numpy(pixels),
    ]
    expected = predictor(pixels)
    assert isinstance(expected, Label) and expected.source is None
    for form in forms:
        assert same(predictor(form), expected)
    assert predictor(path).source == str(path)


def test_grey_images_are_read_as_colour_ones(predictor: Predictor) -> None:
    grey = picture(3)[:, :, 0]
    expected = predictor(np.dstack([grey] * 3))
    for form in (grey, grey[:, :, None], Image.fromarray(grey), torch.from_numpy(grey)[None]):
        assert predictor(form) == expected


def test_transparency_is_seen_on_white(predictor: Predictor) -> None:
    clear = np.zeros((32, 32, 4), np.uint8)
    assert predictor(clear) == predictor(np.full((32, 32, 3), 255, np.uint8))


def test_black_and_white_masks_are_images(predictor: Predictor) -> None:
    mask = picture(2)[:, :, 0] > 127
    assert predictor(mask) == predictor(mask.astype(np.uint8) * 255)


def test_a_label_holds_probabilities_best_first(predictor: Predictor) -> None:
    label = predictor(picture(0), top_k=100)
    shares = [share for _, share in label.top]
    assert len(shares) == 7 and sum(shares) == pytest.approx(1, abs=1e-6)
    assert shares == sorted(shares, reverse=True)
    assert label.top[0] == (label.name, label.confidence)
    assert NAMES[label.index] == label.name
    assert len(predictor(picture(0), top_k=2).top) == 2


def test_a_list_gives_a_list_and_a_stack_too(predictor: Predictor) -> None:
    stack = np.stack([picture(seed) for seed in range(5)])
    results = predictor(list(stack))
    assert (
        len({round(label.confidence, 3) for label in results if isinstance(label, Label)}) == 5
    )  # else a mix-up could not be seen
    for form in (stack, tuple(stack), torch.from_numpy(stack).permute(0, 3, 1, 2)):
        assert predictor(form) == results
    assert predictor([]) == []


def test_what_else_is_in_the_batch_does_not_matter(predictor: Predictor) -> None:
    images = [picture(seed, height=20 + 7 * seed, width=90 - 5 * seed) for seed in range(10)]
    alone = [predictor(image) for image in images]
    for batch_size in (1, 3, 10):
        together = predictor(images, batch_size=batch_size)
        for a, b in zip(alone, together, strict=True):
            assert same(a, b)


def test_logits_of_an_array_are_those_behind_the_labels(predictor: Predictor) -> None:
    stack = np.stack([picture(seed) for seed in range(5)])
    logits = predictor.logits(stack, batch_size=2)
    assert logits.shape == (5, 7)
    assert logits.argmax(1).tolist() == [label.index for label in predictor(stack)]
    assert predictor.logits(stack[:0]).shape == (0, 7)


# --- streams --------------------------------------------------------------------------------------------


def test_a_stream_answers_in_order_and_holds_little(predictor: Predictor) -> None:
    drawn = 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal drawn
        while True:
            yield picture(drawn % 5)
            drawn += 1

    expected = [predictor(picture(seed)) for seed in range(5)]
    results = predictor.stream(endless(), batch_size=4)
    for index in range(50):
        result = next(results)
        assert same(result, expected[index % 5])
        assert drawn <= index + 1 + 2 * 4
    results.close()  # type: ignore[attr-defined]


def test_an_error_of_the_generator_itself_is_not_hidden(predictor: Predictor) -> None:
    def breaks() -> Iterator[np.ndarray]:
        yield picture(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(predictor.stream(breaks()))


# --- what cannot be read --------------------------------------------------------------------------------


def test_a_corrupt_image_gets_an_error_entry_and_the_rest_is_answered(predictor: Predictor, tmp_path: Path) -> None:
    good, corrupt, truncated = (tmp_path / name for name in ("good.png", "corrupt.jpg", "truncated.png"))
    Image.fromarray(picture(0)).save(good)
    corrupt.write_bytes(b"these are not pixels")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:2000])

    results = predictor([corrupt, good, truncated, tmp_path / "absent.png", good])
    assert [bool(result) for result in results] == [False, True, False, False, True]
    for result, name in zip(results, ("corrupt.jpg", "", "truncated.png", "absent.png", ""), strict=True):
        if isinstance(result, Failure):
            assert result.source.endswith(name) and name in result.message
    assert same(results[1], predictor(good)) and same(results[4], results[1])


def test_a_single_corrupt_image_raises_and_is_named(predictor: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "corrupt.jpg"
    path.write_bytes(b"these are not pixels")
    with pytest.raises(UserError, match=r"corrupt\.jpg' cannot be read as an image"):
        predictor(path)


def test_a_lazily_opened_image_that_is_truncated_is_a_failure_too(predictor: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "truncated.bmp"
    Image.fromarray(picture(0)).save(path)
    path.write_bytes(path.read_bytes()[:500])
    (failure,) = predictor([Image.open(path)])
    assert isinstance(failure, Failure)
    assert failure.source == "input 0" and "cannot be decoded" in failure.message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.random.default_rng(0).normal(size=(8, 8, 3)), "A float image has values from 0 to 1, not -"),
        (np.full((8, 8, 3), np.nan), "A float image has values from 0 to 1"),
        (np.zeros((8, 8, 3), np.int64), "Pixels are uint8 .* not int64"),
        (np.zeros((8, 8, 5), np.uint8), r"An image array is .* not \(8, 8, 5\)"),
        (np.zeros((0, 8, 3), np.uint8), r"not \(0, 8, 3\)"),
        (None, "An image is a path, a PIL image, an array or a tensor, not NoneType"),
    ],
)
def test_what_is_no_image_is_told_why(predictor: Predictor, wrong: Any, message: str) -> None:
    (failure,) = predictor([wrong])
    assert isinstance(failure, Failure) and failure.source == "input 0"
    with pytest.raises(UserError, match=message):
        raise UserError(failure.message)


# --- precision ------------------------------------------------------------------------------------------


def test_in_bf16_the_answers_are_those_of_fp32_but_for_rounding(file: Path, predictor: Predictor) -> None:
    rounded = vitocr.load(file, device="cpu", precision="bf16")
    images = [picture(seed) for seed in range(5)]
    exact, found = predictor.logits(np.stack(images)), rounded.logits(np.stack(images))
    assert found.dtype == torch.float32 and not torch.equal(exact, found)
    assert (exact - found).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("name", [name for name in HEADS if name != "classify"])
def test_every_way_to_read_works_in_bf16(name: str) -> None:
    torch.manual_seed(0)
    head = HEADS[name] | {"symbols": len(CHARACTERS), "max_length": 8}
    model = build_model({"image_size": list(SIZE), "backbone": BACKBONE, "head": head})
    seen: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, given, out: seen.add(out.dtype))
    look = {"size": list(SIZE), "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch", "interpolation": "bicubic"}
    codec = {"type": "charset", "characters": CHARACTERS}
    description = describe(task="small", kind="text", model=model.spec, codec=codec, preprocess=look)
    readings = Predictor(model, description, precision="bf16")([picture(seed) for seed in range(3)])
    assert all(isinstance(reading, Reading) and 0 <= reading.confidence <= 1 for reading in readings)
    assert torch.bfloat16 in seen


def test_auto_takes_bf16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        monkeypatch.setattr("vitocr.machine.cpu_has_bf16", lambda there=there: there)
        assert in_bf16("auto", torch.device("cpu")) is there
        assert in_bf16("bf16", torch.device("cpu")) and not in_bf16("fp32", torch.device("cpu"))


# --- loading --------------------------------------------------------------------------------------------


def test_a_run_folder_stands_for_the_model_in_it(file: Path, predictor: Predictor) -> None:
    assert vitocr.load(file.parent)(picture(0)) == predictor(picture(0))


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model in the folder .* none of model.safetensors, best.ckpt"):
        vitocr.load(tmp_path)


def test_a_shipped_model_is_found_by_name(file: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitocr.catalog.SHIPPED", file.parent)
    assert vitocr.load("model")(picture(0)) == predictor(picture(0))
    with pytest.raises(UserError, match=r"no model 'modell'\. Did you mean 'model'\? `vitocr models` lists"):
        vitocr.load("modell")


def test_a_device_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(UserError, match="device 'abacus'"):
        vitocr.load(file, device="abacus")


def test_a_fresh_process_elsewhere_needs_torch_alone(file: Path, predictor: Predictor, tmp_path: Path) -> None:
    """No Lightning, Hydra, albumentations or matplotlib: an inference machine does not have them."""
    Image.fromarray(picture(0)).save(tmp_path / "image.png")
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("lightning", "pytorch_lightning", "hydra", "omegaconf", "albumentations",
                                  "cv2", "matplotlib", "torchvision", "timm", "typer"):
            raise ImportError(f"{{name}} is not installed here")
sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(Path(vitocr.__file__).parents[1])!r})
import vitocr
print(vitocr.load({str(file)!r})("image.png").name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.strip() == predictor(tmp_path / "image.png").name


def test_importing_vitocr_is_instant_and_imports_no_torch() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import vitocr; t = time.perf_counter() - t;"
        "vitocr.Label, vitocr.Failure, vitocr.UserError, vitocr.list_models, vitocr.__version__;"
        "print(t, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, torch_there, numpy_there = done.stdout.split()
    assert float(seconds) < 0.3
    assert (torch_there, numpy_there) == ("False", "False")


def test_the_front_door_names_what_it_has_and_refuses_the_rest() -> None:
    assert {"load", "list_models", "Label", "Failure", "UserError"} <= set(dir(vitocr))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = vitocr.lode
