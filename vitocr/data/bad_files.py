"""Keeping count of image files that cannot be read: each is named once, and too many are an error."""

from __future__ import annotations

from collections.abc import Callable

from vitocr.errors import UserError


class BadFiles:
    """max_fraction: of all `total` files; one bad file is always put up with."""

    def __init__(self, total: int, *, max_fraction: float, say: Callable[[str], object]) -> None:
        self.total, self.limit, self.say = total, max(1, int(max_fraction * total)), say
        self.why: dict[int, str] = {}  # row -> which file it is and what is wrong with it

    def add(self, row: int, why: str) -> None:
        if row in self.why:
            return
        self.why[row] = why
        self.say(f"Skipped an unreadable image ({len(self.why)} so far): {why}")
        if len(self.why) > self.limit:
            shown = "\n".join(f"  {line}" for line in list(self.why.values())[:5])
            raise UserError(
                f"{len(self.why)} of {self.total} images cannot be read, more than the {self.limit} that are "
                f"put up with:\n{shown}\nRepair or remove them, or raise max_bad_fraction."
            )
