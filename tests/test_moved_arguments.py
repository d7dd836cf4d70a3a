"""Keyword arguments that moved into a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from delta_maintenance.moved_arguments import fields_of, moved_arguments


@dataclass(frozen=True)
class Size:
    width: int = 1
    height: int = 2


@moved_arguments("size", ("width", "height"), fields_of(Size))
def draw(name: str, *, size: Size | None = None) -> tuple[str, Size | None]:
    return name, size


def test_the_record_is_passed_on_without_a_warning() -> None:
    assert draw("a", size=Size(3)) == ("a", Size(3))
    assert draw("a") == ("a", None)


@pytest.mark.parametrize("size, expected", [(None, Size(1, 9)), (Size(3), Size(3, 9))])
def test_a_moved_argument_becomes_a_field_of_the_record(size: Size | None, expected: Size) -> None:
    former = cast(Any, draw)
    given = {} if size is None else {"size": size}
    with pytest.warns(DeprecationWarning, match=r"draw takes height as part of size; .* in 0\.3"):
        assert former("a", **given, height=9) == ("a", expected)


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(TypeError, match="depth"):
        cast(Any, draw)("a", depth=1)
