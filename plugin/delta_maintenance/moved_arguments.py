"""Accepts keyword arguments that moved into a record, with a `DeprecationWarning`, until 0.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

REMOVED_IN = "0.3"

P = ParamSpec("P")
R = TypeVar("R")

Merge = Callable[[Any, dict[str, Any]], Any]
"""Merges the moved arguments into the value of the new parameter, which may be None."""


def moved_arguments(
    parameter: str, names: Sequence[str], merge: Merge
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that takes `parameter` instead of the keyword arguments `names`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
            moved = {name: kwargs.pop(name) for name in names if name in kwargs}
            if moved:
                warnings.warn(
                    f"{function.__qualname__} takes {', '.join(moved)} as part of {parameter}; "
                    f"the separate arguments will be removed in {REMOVED_IN}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[parameter] = merge(kwargs.get(parameter), moved)
            return function(*args, **kwargs)

        return accepting

    return decorate


def fields_of(record: Callable[[], Any]) -> Merge:
    """Returns a merge of moved arguments as fields of a frozen dataclass with defaults."""
    return lambda given, moved: replace(record() if given is None else given, **moved)
