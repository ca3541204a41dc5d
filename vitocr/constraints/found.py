"""What a beam search comes back with, and the sums both searches need. See search.py for how they are put to use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
NEVER = -np.inf


class Text(NamedTuple):
    ids: tuple[int, ...]
    log_prob: float  # of the whole text, by the model
    weight: float  # log_prob and what is added for being preferred: what texts are ranked by
    probs: Floats  # (L,) of each character, among the symbols that were allowed in its place
    seen: Floats  # (L, N) where on the grid each was seen


class Found(NamedTuple):
    """Of one image."""

    texts: list[Text]  # the best first; none if nothing satisfies the constraint
    log_total: float  # estimate of the probability that a text satisfies the constraint


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """In double precision: a constraint may ask for what a model finds very unlikely."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def log_sum(logs: Floats) -> NDArray[np.float64]:
    """log of the sum of exp over the last axis; -inf where all are."""
    most = logs.max(axis=-1, initial=NEVER)
    base = np.where(most > NEVER, most, 0.0)
    with np.errstate(divide="ignore"):
        return base + np.log(np.exp(logs - base[..., None]).sum(axis=-1))


def log_growth(kept: Floats, dropped: Floats) -> NDArray[np.float64]:
    """log of (kept + dropped) / kept, where anything is kept at all."""
    with np.errstate(invalid="ignore"):
        return np.where(kept > NEVER, np.logaddexp(0.0, dropped - kept), 0.0)
