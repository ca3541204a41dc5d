"""What the tests of constraints share: regular expressions at random, and all texts there are."""

import itertools
import random
from collections.abc import Iterator


def any_pattern(random: random.Random, characters: str, depth: int = 3) -> str:
    """A regular expression over some characters, none of which means anything by itself in one."""
    one, other = (random.choice(characters) for _ in range(2))
    low, high = sorted((one, other))
    atoms = [one, ".", r"\d", r"\w", f"[{one}{other}]", f"[^{one}]", f"[{low}-{high}]", rf"[^\d{one}]"]
    if depth == 0 or random.random() < 0.3:
        return random.choice(atoms)
    inner, second = (any_pattern(random, characters, depth - 1) for _ in range(2))
    count = random.choice(["?", "*", "+", "{2}", "{1,2}", "{,3}", "{2,}", "*?", "{0}", "??"])
    return random.choice([inner + second, f"({inner}|{second})", f"(?:{inner}|)", f"({inner}){count}"])


def all_texts(symbols: int, longest: int) -> Iterator[tuple[int, ...]]:
    for length in range(longest + 1):
        yield from itertools.product(range(symbols), repeat=length)
