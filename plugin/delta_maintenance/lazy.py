"""Packages that load some of their public names on first use.

Importing pyarrow takes time. With lazy names, a process that only needs the package itself, such as
an orchestrator that parses its Dags, does not import the modules that define the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, **modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Each keyword is a module, relative to `package`; its value is the names that it defines,
    divided by spaces. For a module in a subpackage, write `__` for the dot.
    """
    places = {
        name: f"{package}.{module.replace('__', '.')}"
        for module, names in modules.items()
        for name in names.split()
    }

    def load(name: str) -> Any:
        if name not in places:
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[package])
        return getattr(import_module(places[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return load, names
