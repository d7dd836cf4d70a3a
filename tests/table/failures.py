"""The contents of an error message: the problem, its location and the remedy, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from tests.support.tables.table_builder import TableBuilder


@contextmanager
def fails(
    kind: type[DeltaMaintenanceError],
    problem: str,
    *,
    table: TableBuilder,
    version: int | None,
    file: str | None,
) -> Iterator[None]:
    """The block raises exactly `kind`, which tells all of this, and a remedy."""
    with pytest.raises(kind) as failure:
        yield
    error = failure.value
    assert type(error) is kind
    assert problem in error.problem
    assert error.table == table.store.root
    assert error.version == version
    assert error.file == file
    assert error.remedy
    line = str(error)
    assert "\n" not in line
    for part in (error.table, str(version or ""), file or "", error.problem, error.remedy):
        assert part in line
