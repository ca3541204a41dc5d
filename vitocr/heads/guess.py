"""Reading with a guess: what a decoder would read one symbol after another, in one pass or two.

Given a guess of the whole text, a decoder that looks only back answers all places at once. Up to the first answer that
differs from the guess, they are what it would have answered step by step; after it, they make the next guess. A text
that is answered as it was given is read, and nearly all that CTC guesses are at the first pass: they cost one pass over
the text instead of a step for every character, and the answers are the same. (Draft and verify: Stern et al. 2018,
Leviathan et al. 2023; that going on with the answers arrives: Song et al. 2021.)

inference/numpy_decode.py has the same for arrays.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitocr.heads.text import Decoded, until_the_end


class Look(Protocol):
    def __call__(self, given: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Given whole texts (R, P) of the images with these numbers (R,), each after the begin: the logits
        (R, P, S + 1) of what follows each symbol, and where it looked (R, P, N)."""


def read_by_guess(look: Look, guess: Decoded, *, end: int, max_length: int, rows: int) -> tuple[Decoded, Tensor]:
    """As `heads.text.read_stepwise`, in as many passes as it takes until nothing changes: at most one a place. And the
    logarithm (B,) of the probability that the decoder gives the guess, which is known from the first pass; nan of one
    that is longer than a text may be."""
    B, device = len(guess.ids), guess.ids.device
    ids = torch.full((B, max_length + 1), end, device=device)
    probs = torch.ones(B, max_length + 1, device=device)
    weights, of_guess = None, torch.zeros(B, device=device)
    reading = torch.arange(B, device=device)  # the images whose text may still change
    text = guess.ids.where(guess.ids >= 0, end)[:, :max_length]  # (R, L)
    for _ in range(max_length + 1):
        L = text.shape[1]
        P = min(L + 2, max_length + 1)  # a place to end at, and one to grow by
        given = F.pad(text, (1, P - 1 - L), value=end)  # (R, P)
        logits, looked = look(given, reading)
        chances = logits.float().softmax(dim=-1)
        prob, said = chances.max(dim=-1)  # (R, P)
        if max_length < P:  # no room for another character
            prob[:, max_length], said[:, max_length] = chances[:, max_length, end], end
        said = said.where((said == end).cumsum(dim=1) == 0, end)
        expected = F.pad(given[:, 1:], (0, 1), value=end)
        if weights is None:
            weights = looked.new_zeros(B, max_length + 1, looked.shape[2], dtype=torch.float32)
            ends = (expected == end).long()
            asked = ends.cumsum(dim=1) == ends  # the places of the text, and its end
            of_guess = chances.gather(2, expected[..., None])[..., 0].log().where(asked, 0.0).sum(dim=1)
            of_guess[guess.lengths > max_length] = torch.nan
        ids[reading, :P], probs[reading, :P], weights[reading, :P] = said, prob, looked.float()
        ids[reading, P:] = end
        changed = (said != expected).any(dim=1).nonzero()[:, 0]
        if len(changed) == 0:
            break
        reading, text = reading[changed], said[changed]
        text = text[:, : min(max_length, int((text != end).sum(dim=1).max()))]
    assert weights is not None
    ids[:, max_length] = end  # should rounding have kept a text from settling, it is cut here
    return until_the_end(ids, probs, weights, end=end, rows=rows), of_guess
