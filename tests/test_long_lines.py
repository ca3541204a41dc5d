"""A line cut into windows and put together again says what stands there, each character once."""

import itertools
import random
import string

import numpy as np
import pytest

from vitocr.inference.long_lines import LONGEST, OVERLAP, cut, join, windows
from vitocr.results import Character, Reading

HEIGHT = 32
ASPECT = 4.0  # of the model's frame


def read_like_a_model(
    text: str, size: tuple[int, int], *, width: float, rng: random.Random, mistakes: bool
) -> list[Reading]:
    """What a model would read in each window: the characters that lie in it whole, and rubbish for those cut off."""
    readings = []
    for left, right in windows(size, ASPECT):
        seen = []
        for i, character in enumerate(text):
            x0, x1 = i * width, (i + 1) * width
            share = (min(x1, right) - max(x0, left)) / width
            if share < 0.2:
                continue
            said = character if share > 0.8 or not mistakes else "?"
            off = rng.uniform(-0.15, 0.15) * width
            box = (max(x0, left) - left + off, 4.0, min(x1, right) - left + off, 28.0)
            seen.append(Character(said, 0.9 if said == character else 0.4, box))
        readings.append(Reading("".join(c.text for c in seen), 0.5, tuple(seen), "line.png"))
    return readings


@pytest.mark.parametrize("mistakes", [False, True], ids=["clean", "rubbish-at-the-edges"])
@pytest.mark.parametrize("width", [14.0, 20.0, 31.0])
def test_lines_of_any_length_come_together_whole(width: float, mistakes: bool) -> None:
    rng = random.Random(0)
    for length in range(20, 90, 3):
        text = "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
        size = (HEIGHT, round(length * width))
        line = join(read_like_a_model(text, size, width=width, rng=rng, mistakes=mistakes), size, ASPECT)
        assert line.text == text
        lefts = [character.box[0] for character in line.characters]
        assert lefts == sorted(lefts) and abs(lefts[-1] - (length - 1) * width) < 0.2 * width
        assert line.confidence == pytest.approx(0.9**length) and line.source == "line.png"


def test_doubled_letters_are_not_merged_into_one() -> None:
    size = (HEIGHT, 40 * 16)
    text = "aabbccddeeffgghhiijjkkllmmnnooppqqrrsstt"
    assert join(read_like_a_model(text, size, width=16, rng=random.Random(1), mistakes=True), size, ASPECT).text == text


def test_windows_cover_the_line_and_overlap_enough() -> None:
    for width in range(HEIGHT, 60 * HEIGHT, 7):
        spans = windows((HEIGHT, width), ASPECT)
        assert spans[0][0] == 0 and spans[-1][1] == width
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end - start >= OVERLAP * ASPECT * HEIGHT - 1
        assert max(right - left for left, right in spans) <= LONGEST * ASPECT * HEIGHT


def test_a_word_is_not_cut() -> None:
    image = np.zeros((HEIGHT, 8 * HEIGHT, 3), np.uint8)
    assert [part.shape for part in cut(image, ASPECT)] == [image.shape]
    assert len(cut(np.zeros((HEIGHT, 9 * HEIGHT, 3), np.uint8), ASPECT)) > 1


def test_a_scratch_is_not_cut_into_a_thousand_windows() -> None:
    assert len(windows((1, 3000), ASPECT)) <= 3000 / (3 * 8)


def test_windows_that_agree_on_nothing_are_joined_in_the_middle_of_the_overlap() -> None:
    size = (10, 100)
    spans = windows(size, ASPECT)
    readings = [
        Reading("x", 0.5, tuple(Character(text, 0.5, (x, 0, x + 2, 10)) for x in range(0, right - left - 2, 4)), None)
        for text, (left, right) in zip(string.ascii_lowercase, spans, strict=False)
    ]
    line = join(readings, size, ASPECT)
    places = [character.box[0] for character in line.characters]
    assert places == sorted(places) and max(np.diff(places)) <= 8
    assert [a for a, b in zip(line.text, line.text[1:] + "!", strict=True) if a != b] == list("abc"[: len(spans)])


def test_a_word_is_read_at_once_by_a_model_of_a_narrow_frame_too() -> None:
    """It has learned words of that shape squeezed, and windows of two heights would hold three letters."""
    assert windows((32, 8 * 32), aspect=2.0) == [(0, 8 * 32)]
    assert len(windows((32, 9 * 32), aspect=2.0)) > 1
