"""The live files of a table as columns, against the replay of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.rewriting import live_columns as module
from delta_maintenance.operations.rewriting.live_columns import LiveColumns, live_columns
from tests.support.tables.actions import add, deletion_vector, dv_id, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

DAMAGED = '{"numRecords":4,"minValues":{"id":1}'
"""Ends like statistics, and is not JSON."""


def builder(folder: Path | None = None) -> TableBuilder:
    made = TableBuilder(folder)
    made.commit([features("deletionVectors"), metadata(partitioned_by=("part",))])
    return made


def file(path: str, part: str | None = "a", **fields: Any) -> dict[str, Any]:
    stats = fields.pop("stats", '{"numRecords":4,"nullCount":{"id":0}}')
    return add(path, partitionValues={"part": part}, stats=stats, **fields)


def columns(made: TableBuilder) -> LiveColumns:
    return live_columns(made.open().snapshot())


def rows(found: LiveColumns) -> list[tuple[Any, ...]]:
    parts = found.partitions["part"].take(pa.array(found.partition)).to_pylist()
    return sorted(
        zip(
            found.path.to_pylist(),
            [vector or "" for vector in found.vector.to_pylist()],
            found.size.tolist(),
            found.rows.tolist(),
            found.deleted.tolist(),
            [part or "" for part in parts],
            strict=True,
        )
    )


@pytest.mark.conformance("LOG-02")
@pytest.mark.parametrize("checkpoint_at", [None, 2, 4])
def test_the_columns_are_those_of_the_live_files(checkpoint_at: int | None) -> None:
    made = builder()
    first, second = deletion_vector("ab^-aqEH.-t@S}K{vb[*k^"), deletion_vector("zz^-aqEH.-t@S}K")
    made.commit([file("one"), file("two", "b", size=7), file("a%20b", "c"), file("gone")])
    made.commit([file("three", None), remove("gone"), remove("one"), file("one", dv=first)])
    # One path twice in a commit: the new vector replaces the old one.
    made.commit([remove("one", dv=first), file("one", dv=second), file("four")])
    made.commit([remove("two"), remove("a%20b"), file("gone", "b", stats=None)])
    made.commit([file("two", "", size=9)])
    if checkpoint_at is not None:
        made.checkpoint(checkpoint_at)
    live = [action["add"] for action in made.state() if "add" in action]
    assert rows(columns(made)) == sorted(
        (
            each["path"],
            dv_id(each) or "",
            each["size"],
            4 if each["stats"] else -1,
            2 if "deletionVector" in each else 0,
            each["partitionValues"]["part"] or "",
        )
        for each in live
    )


def test_two_spellings_or_two_vectors_of_a_live_path_are_refused(tmp_path: Path) -> None:
    twice = builder()
    twice.commit([file("one"), file("one", dv=deletion_vector())])
    respelt = builder(tmp_path)
    respelt.commit([file("a%20b"), file(f"{tmp_path}/a%20b")])
    for made, problem in ((twice, "two deletion vectors"), (respelt, "two different paths")):
        with pytest.raises(CorruptTableError, match=problem):
            columns(made)


def test_the_count_of_a_file_with_a_vector_needs_valid_statistics() -> None:
    made = builder()
    made.commit(
        [
            file("plain", size=100),
            file("vector", size=100, dv=deletion_vector()),
            file("damaged", size=100, dv=deletion_vector(), stats=DAMAGED),
            file("none", size=100, dv=deletion_vector(), stats=None),
        ]
    )
    found = columns(made)
    assert found.live_bytes.tolist() == [100, 50, 100, 100]
    counts = dict(zip(found.path.to_pylist(), found.rows.tolist(), strict=True))
    assert counts == {"plain": 4, "vector": 4, "damaged": -1, "none": -1}


def test_statistics_of_files_without_vector_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    counts = module.record_counts

    def watched(batch: pa.Table, **stated: Any) -> pa.ChunkedArray:
        if not stated:
            parsed.append(batch.num_rows)
        return counts(batch, **stated)

    monkeypatch.setattr(module, "record_counts", watched)
    made = builder()
    made.commit([file("one"), file("two"), file("three", dv=deletion_vector())])
    assert columns(made).rows.tolist() == [4, 4, 4]
    assert parsed == [1]
