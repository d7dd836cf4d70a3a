"""What is loaded on first use: public names of packages, and values that are read from a store.

Importing pyarrow takes time. With lazy names, a process that only needs the package itself, such as
an orchestrator that parses its Dags, does not import the modules that define the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def lazy_names(
    package: str, base: str | None = None, /, **modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package or a module.

    Each keyword is a module, relative to `base` or to `package`; its value is the names that it
    defines, divided by spaces. For a module in a subpackage, write `__` for the dot.
    """
    places = {
        name: f"{base or package}.{module.replace('__', '.')}"
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


class read_once(Generic[T]):
    """A decorator like `functools.cached_property`, without its lock.

    In Python 3.11 that lock is shared by all instances of a class and held while the value is
    computed, so threads that read different files would wait for each other. Two threads that
    access one instance at the same time may both read.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # on the class
        # Without `__set__`, later accesses find the value in the instance.
        value = instance.__dict__[self._name] = self._read(instance)
        return value
