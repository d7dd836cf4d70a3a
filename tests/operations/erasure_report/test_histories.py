"""Erasure reports of tables whose schema, mapping and partitioning changed.

In random histories, *erased* is never said while a version that opens returns the row.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.support.suite.play import some
from tests.support.tables.erasure_histories import History, has_value

HISTORIES = 2000


def read_by_deltalake(history: History) -> list[int]:
    """The versions of which `deltalake` returns the row."""
    found = []
    for version in range(history.version + 1):
        # It does not open every version, and some files of old ones are gone.
        with suppress(Exception):
            table = deltalake.DeltaTable(history.root, version=version)
            rows = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")
            if has_value(pa.table(rows.read_all()).columns):
                found.append(version)
    return found


@pytest.mark.parametrize("seed", some(range(HISTORIES), 12))
def test_erased_is_never_said_while_a_version_returns_the_row(seed: int, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed, features=seed % 4 != 0)
    history.play(history.random.randint(2, 14))
    result = history.report()
    if result.status == "erased":
        assert history.versions_with_rows() == [], history.steps
        assert read_by_deltalake(history) == [], history.steps
