"""Packages whose public names are loaded when they are first used.

Loading pyarrow takes a moment. A package that only names what its modules define can be imported
by a process that never needs them, such as an orchestrator that parses its DAGs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: each public name with the module that defines it.

    Raises `AttributeError` for every other name, as Python does.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{names[name]}"), name)

    return load
