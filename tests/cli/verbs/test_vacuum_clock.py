"""`vacuum` computes ages as of the instant before it listed the table."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from tests.support.tables.table_builder import TableBuilder

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
WEEK = timedelta(days=7)


@pytest.mark.parametrize(("age", "goes"), [(WEEK + timedelta(hours=1), True), (WEEK / 2, False)])
def test_a_file_does_not_age_while_the_table_is_read(
    cli: Any, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch, age: timedelta, goes: bool
) -> None:
    root = Path(builder.store.root)
    for name in ("a", "b", "c", "part-0.parquet"):
        (root / name).write_bytes(b"x")
        os.utime(root / name, ((START - age).timestamp(),) * 2)
    times = iter(START + timedelta(days=n * 30) for n in range(100))
    monkeypatch.setattr(clock, "now", lambda: next(times))
    document = cli("vacuum", root, "--dry-run", "--json").document
    assert datetime.fromisoformat(document["planned_at"]) == START
    listed = [file["path"] for file in document["file_list"]]
    assert listed == (["part-0.parquet"] if goes else [])
