"""What the tests of the text heads share: small heads, and tokens that show a text without any picture."""

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vitocr.heads.ctc import Ctc
from vitocr.heads.lstm import Lstm
from vitocr.heads.permuted import Permuted
from vitocr.heads.text import Decoded, TextTargets
from vitocr.heads.transformer import Transformer

SYMBOLS, LONGEST, COLUMNS, DIM = 10, 8, 24, 32
SMALL: dict[str, Any] = {
    "dim": DIM,
    "prefix": 0,
    "grid": (1, COLUMNS),
    "symbols": SYMBOLS,
    "max_length": LONGEST,
}
HEADS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "ctc": (Ctc, {}),
    "transformer": (Transformer, {"heads": 2}),
    "transformer, two layers": (Transformer, {"heads": 2, "depth": 2, "positions": "sine"}),
    "transformer with ctc": (Transformer, {"heads": 2, "ctc": 0.5}),
    "permuted": (Permuted, {"heads": 2}),
    "permuted with ctc": (Permuted, {"heads": 2, "ctc": 0.5}),
    "lstm": (Lstm, {"hidden": 48}),
    "lstm with ctc": (Lstm, {"hidden": 48, "ctc": 0.5}),
}
DECODERS = [name for name in HEADS if name != "ctc" and "with" not in name]


def head_of(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    cls, own = HEADS[name]
    return cls(**SMALL | own | changes)


def shaken(name: str, *, seed: int = 0, strength: float = 1.0, **changes: Any) -> Any:
    """A head whose weights all do something: it reads nonsense, of many lengths, with differing confidence."""
    head = head_of(name, **changes)
    random = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        with torch.no_grad():
            scale = strength * parameter.shape[-1] ** -0.5
            parameter += scale * torch.randn(parameter.shape, generator=random)
    return head.eval()


@cache
def taught(name: str) -> nn.Module:
    texts = random_texts(32, seed=1)
    head = head_of(name)
    train(head, tokens_showing(texts), targets_of(texts), steps=80, align=0.5)
    return head


def half_taught(name: str, **changes: Any) -> Any:
    """A head that has learned a little: it reads texts of many lengths, some wrong, with differing confidence."""
    head = head_of(name, **changes).eval()
    head.load_state_dict(copy.deepcopy(taught(name).state_dict()))
    return head


def unclear_tokens(count: int, *, seed: int = 5) -> Tensor:
    """Tokens for a half taught head to read."""
    return tokens_showing(random_texts(count, seed=seed), noise=1.0, noise_seed=seed)


def some_tokens(count: int, *, seed: int = 0, places: int = COLUMNS) -> Tensor:
    return torch.randn(count, places, DIM, generator=torch.Generator().manual_seed(seed))


def targets_of(texts: list[list[int]], *, spans: bool = True, width: int | None = None) -> TextTargets:
    """Texts as targets, their characters of equal width side by side; spans=False: nobody knows where."""
    width = max([len(text) for text in texts], default=0) if width is None else width
    ids = torch.full((len(texts), width), -1)
    edges = torch.full((len(texts), width, 2), torch.nan)
    for i, text in enumerate(texts):
        n = len(text)
        ids[i, :n] = torch.tensor(text, dtype=torch.int64)
        if spans and n:
            left = torch.arange(n) / n
            edges[i, :n] = torch.stack([left, left + 1 / n], dim=1)
    return TextTargets(ids, torch.tensor([len(text) for text in texts]), edges)


def random_texts(count: int, *, seed: int = 0, longest: int = LONGEST) -> list[list[int]]:
    """An empty text, one of a single character, one as long as may be, and others of all lengths."""
    random = torch.Generator().manual_seed(seed)
    lengths = [0, 1, longest, *torch.randint(0, longest + 1, (count - 3,), generator=random).tolist()]
    return [torch.randint(0, SYMBOLS, (n,), generator=random).tolist() for n in lengths[:count]]


def tokens_showing(texts: list[list[int]], *, noise: float = 0.2, noise_seed: int = 0) -> Tensor:
    """Each column shows the code of the character that stands there, plus its own place, plus noise."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randn(SYMBOLS + 1, DIM, generator=random)
    places = torch.randn(COLUMNS, DIM, generator=random)
    tokens = []
    for text in texts:
        column = torch.arange(COLUMNS)
        # The last column of each character shows nothing, or doubled letters could not be told apart.
        inside = (column * len(text)) // COLUMNS
        last = ((column + 1) * len(text)) // COLUMNS > inside
        shown = torch.tensor([*text, SYMBOLS])[inside] if text else torch.full((COLUMNS,), SYMBOLS)
        tokens.append(codes[shown.where(~last, SYMBOLS)] + places)
    random.manual_seed(noise_seed)
    return torch.stack(tokens) + noise * torch.randn(len(texts), COLUMNS, DIM, generator=random)


def texts_of(decoded: Decoded) -> list[list[int]]:
    return [ids[:n].tolist() for ids, n in zip(decoded.ids, decoded.lengths.tolist(), strict=True)]


def train(head: nn.Module, tokens: Tensor, targets: TextTargets, *, steps: int, **options: float) -> None:
    """Fit a head to a batch. options: of its loss."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(head.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        head.loss(tokens, targets, **options)["loss"].backward()  # type: ignore[operator]
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    head.eval()
