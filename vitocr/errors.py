"""The one exception meant for people.

A `UserError` says what was wrong, where, and what to do about it. The command line prints its message
alone, without a traceback; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can fix: a missing file, a misspelt name, options that contradict each other."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """' Did you mean 'x'?' when an option is close to `word`, else the empty string."""
    by_lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""
