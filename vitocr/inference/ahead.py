"""`map` in threads that work ahead of who takes the results: images are decoded while the model is at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from vitocr.cores import usable_cores

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Out = TypeVar("Out")

MOST_THREADS = 4  # decoding keeps up with any model from there on, and more only share the same cores


def in_order(function: Callable[[Item], Out], items: Iterable[Item], *, ahead: int) -> Iterator[Out]:
    """`map(function, items)` in threads, at most `ahead` results in advance of the consumer.

    For a single item nothing can overlap, and who asks for one word waits for it: it is done right here, and neither
    threads nor the module that makes them cost anything.
    """
    items = iter(items)
    first = list(islice(items, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(min(MOST_THREADS, usable_cores()))
    waiting: deque[Future[Out]] = deque()
    try:
        for item in chain(first, items):
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also when the consumer stops early
        pool.shutdown(wait=False, cancel_futures=True)
