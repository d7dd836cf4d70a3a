"""Keyword arguments that were renamed: the old names work for one release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from delta_maintenance.renamed_modules import REMOVED_IN

A = ParamSpec("A")
T = TypeVar("T")


def renamed_keywords(**names: str) -> Callable[[Callable[A, T]], Callable[A, T]]:
    """`renamed_keywords(old="new")` lets a function take `new` under its former name `old`."""

    def decorate(function: Callable[A, T]) -> Callable[A, T]:
        @wraps(function)
        def renamed(*given: A.args, **named: A.kwargs) -> T:
            for old in names.keys() & named.keys():
                warnings.warn(
                    f"the argument {old} of {function.__qualname__} was renamed to {names[old]}; "
                    f"the old name will be removed in {REMOVED_IN}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                named[names[old]] = named.pop(old)
            return function(*given, **named)

        return renamed

    return decorate
