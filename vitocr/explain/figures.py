"""Which figures an explanation has, and what is said about each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitocr.codec import Charset, codec_from_dict
from vitocr.explain.collect import Explanation, ImageSeen
from vitocr.explain.draw import (
    Panel,
    Row,
    boxed,
    distance_plot,
    enlarged,
    filter_picture,
    heat,
    peak_ratio,
    similarity_picture,
    tile_size,
)
from vitocr.explain.looks import Looks
from vitocr.results import Reading

COLOURS = "Colour marks what gets more than an even share: yellow a little, red the most."
TIMES = "The number is how many times an even share the peak gets."


@dataclass(frozen=True)
class Shown:
    """A figure: rows of panels with a title and a few sentences. `name` is its file's, `of` the image it is about."""

    name: str
    of: str
    title: str
    text: str
    rows: list[Row]
    columns: int  # of the sheet
    kind: str = "small"  # of panels on the page: small, wide or plot


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    figures: list[Shown]


def sections_of(found: Explanation) -> Iterator[Section]:
    """One for each image, one for the model; drawn one by one, for the panels of many images are many."""
    for number, seen in enumerate(found.images, 1):
        yield image_section(found, number, seen)
    yield model_section(found)


def array(values: Tensor) -> NDArray[np.float32]:
    result: NDArray[np.float32] = values.cpu().float().numpy()
    return result


def percent(share: float) -> str:
    digits = 1 if 0.995 <= share < 0.9995 else 0
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


# --- an image -------------------------------------------------------------------------------------------


def image_section(found: Explanation, number: int, seen: ImageSeen) -> Section:
    safe = re.sub(r"[^\w.-]+", "_", Path(seen.source).stem)[:40]
    stem = f"{number:02}-{safe}"
    kind = "wide" if seen.pixels.shape[1] > 1.6 * seen.pixels.shape[0] else "small"
    name = Path(seen.source).name
    answer = seen.answer
    if isinstance(answer, Reading):
        text = f"Read as “{answer.text}”, {percent(answer.confidence)} sure." if answer.text else "Nothing was read."
    elif answer is None:
        text = "A pretrained backbone: it sees, but has no answers yet."
    else:
        text = "Taken for " + ", ".join(f"{label} ({percent(share)})" for label, share in answer.top) + "."
    figures = [rollout_figure(seen, stem, name, kind)]
    figures += [looks_figure(found, seen, looks, stem, name, kind) for looks in seen.looks]
    if seen.heads is not None and seen.from_chosen is not None:
        asks = "the class token" if found.reads_class_token else "the patches, on average,"
        text_heads = f"Where {asks} look{'s' if found.reads_class_token else ''} in each layer. {COLOURS} {TIMES}"
        figures.append(heads_figure(seen, seen.heads, f"{stem}-heads", "Every head", text_heads, kind))
        text_patch = (
            "Where one patch looks, the one framed in blue, which counts most by the rollout. "
            f"A head that looks at neighbours shows it here. {COLOURS} {TIMES}"
        )
        figures.append(
            heads_figure(
                seen, seen.from_chosen, f"{stem}-patch", "From one patch", text_patch, kind, frame=patch_box(seen)
            )
        )
    return Section(name, text, figures)


def patch_box(seen: ImageSeen) -> tuple[float, float, float, float]:
    assert seen.rolled is not None
    (row, column), (rows, columns) = seen.chosen, seen.rolled.shape
    return column / columns, row / rows, (column + 1) / columns, (row + 1) / rows


def rollout_figure(seen: ImageSeen, stem: str, name: str, kind: str) -> Shown:
    given = enlarged(seen.pixels, tile_size(seen.pixels))
    panels = [Panel(given, "as the model sees it", f"{name} as the model is given it")]
    text = f"The image, {seen.pixels.shape[1]} x {seen.pixels.shape[0]} pixels."
    if seen.rolled is not None:
        share = array(seen.rolled)
        times = f"{peak_ratio(share):.1f}×"
        alt = f"{name} with attention rollout: {place(share)}, {times} an even share"
        panels.append(Panel(heat(seen.pixels, share), f"rollout, {times}", alt))
        text = (
            "The image, and how much of what comes out of the last layer was gathered from each patch, the attention "
            f"of all layers multiplied (rollout). {COLOURS} {TIMES}"
        )
    return Shown(f"{stem}-rollout", name, "What counts", text, [Row("", panels)], 2, kind)


def heads_figure(
    seen: ImageSeen,
    maps: Tensor,
    name: str,
    title: str,
    text: str,
    kind: str,
    frame: tuple[float, float, float, float] | None = None,
) -> Shown:
    rows = []
    for layer, heads in enumerate(array(maps), 1):
        panels = []
        for head, share in enumerate(heads, 1):
            times = f"{peak_ratio(share):.1f}×"
            alt = f"layer {layer}, head {head}: most attention {place(share)}, {times} an even share"
            picture = heat(seen.pixels, share)
            panels.append(Panel(boxed(picture, frame) if frame else picture, f"head {head}, {times}", alt))
        rows.append(Row(f"layer {layer}", panels))
    return Shown(name, Path(seen.source).name, title, text, rows, 4 if kind == "wide" else 12, kind)


def place(share: NDArray[np.float32]) -> str:
    """The peak in words."""
    down, across = divmod(int(share.argmax()), share.shape[1])

    def third(at: int, count: int, names: tuple[str, str, str]) -> str:
        return names[min(2, 3 * at // count)] if count > 2 else ""

    words = (
        third(down, share.shape[0], ("at the top", "in the middle", "at the bottom")),
        third(across, share.shape[1], ("left", "centre", "right")),
    )
    return " ".join(filter(None, words)) or "all over"


def looks_figure(found: Explanation, seen: ImageSeen, looks: Looks, stem: str, name: str, kind: str) -> Shown:
    charset = codec_from_dict(found.description["codec"])
    assert isinstance(charset, Charset)
    panels = []
    text = ""
    for index, prob, weights, box in zip(looks.ids, looks.probs, array(looks.weights), array(looks.boxes), strict=True):
        character = charset.decode([index])
        text += character
        said = "space" if character == " " else character
        alt = f"looked {place(weights)} for “{said}”, {percent(prob)} sure"
        panels.append(Panel(boxed(heat(seen.pixels, weights), box.tolist()), f"“{said}”, {percent(prob)}", alt))
    how = {
        "decoder": "Where the decoder looked (its last layer, a mean over heads) when it wrote each character",
        "CTC": "The columns from which CTC read each character",
    }[looks.who]
    both = " The model answers with the likelier of their two texts." if len(seen.looks) > 1 else ""
    reading = f"“{text}”, {percent(looks.confidence)} sure" if text else "It read nothing"
    return Shown(
        f"{stem}-{looks.who.lower()}",
        name,
        f"Character by character: {looks.who}",
        f"{how}; the frame goes as far as half the peak. {reading}.{both} {COLOURS}",
        [Row("", panels)] if panels else [],
        4,
        kind,
    )


# --- the model ------------------------------------------------------------------------------------------


def model_section(found: Explanation) -> Section:
    figures = []
    if found.components is not None and found.component_shares is not None:
        shares = found.component_shares.tolist()
        even = 100 / found.component_count
        panels = [
            Panel(
                filter_picture(component),
                f"{100 * share:.1f} %",
                f"component {number}, {100 * share:.1f} % of variance",
            )
            for number, (component, share) in enumerate(zip(array(found.components), shares, strict=True), 1)
        ]
        text = (
            f"Principal components of {found.first_layer}, the strongest first, with their share of the variance: "
            "what the first layer tells apart in the pixels. Grey is nothing; a component may as well be its negative. "
            f"Filters that had learned nothing in common would show noise, about {even:.1f} % each."
        )
        figures.append(Shown("model-filters", "", "What the first layer sees", text, [Row("", panels)], 7, "filter"))
    if found.positions is not None:
        figures.append(positions_figure(array(found.positions)))
    if found.distance is not None:
        figures.append(distance_figure(found))
    text = (
        "What can be seen of the model itself." if figures else "Nothing of what is drawn here applies to this model."
    )
    return Section("The model", text, figures)


def positions_figure(cosines: NDArray[np.float32]) -> Shown:
    rows, columns = cosines.shape[:2]
    low = f"dark is {cosines.min():.2f}, yellow is 1 (a position with itself)"
    if rows == 1 or columns == 1:
        layout = f"a row for each of the {rows * columns} positions, a cell in it for each other one"
    else:
        layout = f"a panel for a position of the {rows} x {columns} grid, in it a cell for each other position"
    text = f"Cosine similarity of the position embeddings: {layout}; {low}."
    panel = Panel(similarity_picture(cosines), f"{cosines.min():.2f} (dark) to 1 (yellow)", text)
    return Shown("model-positions", "", "Where the model thinks its patches are", text, [Row("", [panel])], 1, "plot")


def distance_figure(found: Explanation) -> Shown:
    assert found.distance is not None
    distance, even = array(found.distance), found.even_distance
    means = distance.mean(axis=1)
    count = len(found.images)
    text = (
        "How far, in pixels, what a patch attends to lies from it, for each head, "
        f"{'in this image' if count == 1 else f'a mean over {count} images'}: low heads work like convolutions, high "
        f"ones see the whole. Looking everywhere alike (even) would give {even:.1f}."
    )
    alt = f"mean attention distance by layer: {', '.join(f'{mean:.1f}' for mean in means)} pixels; even: {even:.1f}"
    panel = Panel(distance_plot(distance, even), "", alt, on_dark=distance_plot(distance, even, dark=True))
    return Shown("model-distance", "", "How far the heads look", text, [Row("", [panel])], 1, "plot")
