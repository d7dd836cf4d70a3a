"""Lazy properties whose value is read from a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
