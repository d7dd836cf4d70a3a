"""Properties that read a store when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class read_once(Generic[T]):
    """A decorator like `functools.cached_property`, without its lock.

    In Python 3.11 that lock is shared by all instances of a class and held while the value is
    computed, so that threads which read different files wait for each other. Two threads that ask
    one instance at once may both read.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # on the class
        # As this has no `__set__`, Python finds the value in the instance from now on.
        value = instance.__dict__[self._name] = self._read(instance)
        return value
