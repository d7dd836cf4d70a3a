"""Packages that load their public names on first use.

Importing pyarrow takes time. With lazy names, a process that only needs the package itself, such as
an orchestrator that parses its Dags, does not import the modules that define the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    `names` maps each public name to the module that defines it, relative to `package`. Raises
    `AttributeError` for other names.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{names[name]}"), name)

    return load
