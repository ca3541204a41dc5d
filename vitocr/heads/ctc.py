"""Connectionist temporal classification: every column of the grid says a symbol or the blank.

A text is read in one pass: the likeliest symbol of each column, repeats merged, blanks dropped. The loss
sums over all ways to lay the text on the columns; where the renderer knows the spans of the characters,
`align` tells the columns directly, which ends the long plateau in which CTC looks for the alignment.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.heads.text import Decoded, SymbolLogits, TextTargets, boxes, patch_tokens, span_cover, within


class Ctc(nn.Module):
    """`rows` pools the rows of the grid into one: "mean", or "learned", a softmax over the tokens of a column."""

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        symbols: int,
        max_length: int,
        rows: str = "mean",
        smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if rows not in ("mean", "learned"):
            raise ValueError(f"head.rows={rows}: choose mean or learned")
        if max_length > grid[1]:
            raise ValueError(
                f"head.max_length={max_length} is more than the {grid[1]} columns of the grid, and CTC reads at most "
                "one character a column: use narrower patches, a wider image, or another head"
            )
        self.prefix, self.grid, self.blank, self.max_length = prefix, grid, symbols, max_length
        self.logits = SymbolLogits(dim, symbols, smoothing)
        # With a single row nothing would depend on the scores, and DDP would wait for their gradients.
        self.row_scores = nn.Linear(dim, 1, bias=False) if rows == "learned" and grid[0] > 1 else None
        if self.row_scores is not None:
            nn.init.zeros_(self.row_scores.weight)  # starts as the mean

    def pool(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One token a column (B, columns, D), and the share of each row in it (B, rows, columns)."""
        patches = patch_tokens(tokens, self.prefix, self.grid)
        grid = patches.unflatten(1, (self.grid[0], -1))  # (B, rows, columns, D)
        if self.row_scores is None:
            return grid.mean(dim=1), grid.new_full(grid.shape[:3], 1 / self.grid[0])
        shares = self.row_scores(grid).softmax(dim=1)  # (B, rows, columns, 1)
        return (grid * shares).sum(dim=1), shares[..., 0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.pool(tokens)[0])  # (B, columns, symbols + 1)

    def loss(
        self, tokens: Tensor, targets: TextTargets, *, label_smoothing: float = 0.0, align: float = 0.0
    ) -> dict[str, Tensor]:
        """Nats a character. Texts that do not fit on the columns teach nothing; "infeasible" is their share.

        align: weight of the cross-entropy of each column against the character that stands there.
        """
        log_probs = self(tokens).float().log_softmax(dim=-1)  # (B, columns, S + 1)
        fits = columns_needed(targets.ids, targets.lengths) <= log_probs.shape[1]
        nll = self.text_nll(log_probs, targets.ids, targets.lengths)
        characters = (targets.lengths.clamp(min=1) * fits).sum().clamp(min=1)  # a blank counts as one
        loss = nll.where(fits, 0.0).sum() / characters
        if label_smoothing:
            loss = (1 - label_smoothing) * loss - label_smoothing * log_probs.mean()
        told = {"loss": loss, "infeasible": 1 - fits.float().mean()}
        if align:
            columns = self.column_targets(targets, log_probs.shape[1])  # (B, columns)
            known = columns >= 0
            missed = F.nll_loss(log_probs.flatten(0, 1), columns.flatten(), ignore_index=-1, reduction="sum")
            told["align"] = missed / known.sum().clamp(min=1)
            told["loss"] = loss + align * told["align"]
        return told

    def text_nll(self, log_probs: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """-log of the probability of a text, summed over all its ways on the columns; 0 where there is none."""
        B, columns, _ = log_probs.shape
        labels = F.pad(ids, (0, 1)).clamp(min=0)  # at least one column wide, which torch asks for
        widths = torch.full((B,), columns, device=lengths.device)
        return F.ctc_loss(
            log_probs.transpose(0, 1), labels, widths, lengths, self.blank, reduction="none", zero_infinity=True
        )

    def log_probability(self, tokens: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """Of texts (B, L), that of each over all its ways on the columns of its image; -inf where it has none."""
        log_probs = self(tokens).float().log_softmax(dim=-1)
        if len(ids) == 0:  # which torch's loss does not take
            return log_probs.new_zeros(0)
        nll = self.text_nll(log_probs, ids, lengths)
        return (-nll).where(columns_needed(ids, lengths) <= log_probs.shape[1], -torch.inf)

    def column_targets(self, targets: TextTargets, columns: int) -> Tensor:
        """The symbol of each column, (B, columns): the character that covers most of it, the blank elsewhere.

        -1 throughout for a text with any unknown span. A character so narrow that it nowhere covers half a
        column has the one it covers most of; the first column of a doubled letter is blank where it has two.
        """
        real = within(targets.lengths, targets.ids.shape[1])  # (B, L)
        if real.shape[1] == 0:
            return torch.full((len(real), columns), self.blank, device=real.device)
        cover = span_cover(targets.spans, columns) * real[..., None]  # (B, L, columns)
        narrow = cover.amax(dim=2, keepdim=True) < 0.5
        favourite = F.one_hot(cover.argmax(dim=2), columns)
        cover = cover + narrow * favourite * (cover > 0)
        most, owner = cover.max(dim=1)  # (B, columns)
        ids = targets.ids.gather(1, owner)
        ids = ids.where(most >= 0.5, self.blank)
        starts = (owner[:, 1:] != owner[:, :-1]) & (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] != self.blank)
        goes_on = F.pad(owner[:, 2:] == owner[:, 1:-1], (0, 1))
        ids[:, 1:] = ids[:, 1:].where(~(starts & goes_on), self.blank)
        unknown = (targets.spans.isnan().any(dim=2) & real).any(dim=1)
        return ids.where(~unknown[:, None], -1)

    @torch.no_grad()
    def decode(self, tokens: Tensor, *, exact: bool = True) -> Decoded:
        """Greedy. Confidence is the probability of the text over all its ways on the columns (`exact`), or else
        of the one way that was read. A character's probability is that of its surest column."""
        pooled, row_shares = self.pool(tokens)
        log_probs = self.logits(pooled).float().log_softmax(dim=-1)  # (B, columns, S + 1)
        best, said = log_probs.max(dim=-1)  # (B, columns)
        fresh = (said != self.blank) & (said != F.pad(said[:, :-1], (1, 0), value=self.blank))
        lengths = fresh.sum(dim=1)
        longest = int(lengths.max())
        # Which character a column belongs to; blanks go to one place more, which is cut off.
        character = (fresh.cumsum(dim=1) - 1).where(said != self.blank, longest)
        belongs = F.one_hot(character, longest + 1)[..., :longest].transpose(1, 2)  # (B, L, columns)
        real = within(lengths, longest)
        ids = (belongs * said[:, None]).amax(dim=2) if longest else said[:, :0]
        probs = (belongs * best.exp()[:, None]).amax(dim=2) if longest else best[:, :0]
        ids = ids.where(real, -1)
        log_confidence = -self.text_nll(log_probs, ids, lengths) if exact else best.sum(dim=1)
        seen = belongs[:, :, None] * row_shares[:, None]  # (B, L, rows, columns)
        return Decoded(
            ids, lengths, probs.where(real, 1.0), log_confidence.exp(), boxes(seen.flatten(2), lengths, self.grid[0])
        )


def columns_needed(ids: Tensor, lengths: Tensor) -> Tensor:
    """Columns a text takes at least, (B,): one a character, and a blank between two that are the same."""
    doubled = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)
    return lengths + doubled.sum(dim=1)
