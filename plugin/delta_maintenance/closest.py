"""The known name that a misspelt one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str], *, likeness: float = 0.7) -> str | None:
    """Returns the known name that is most like a given one, whatever their case.

    None if no ratio of equal characters reaches `likeness`.
    """
    # Loaded here, because most names are right.
    from difflib import get_close_matches

    by_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_case, n=1, cutoff=likeness)
    return by_case[found[0]] if found else None
