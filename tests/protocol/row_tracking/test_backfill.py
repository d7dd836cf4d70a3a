"""Files without row IDs, their row counts, and statistics with inserted counts."""

from __future__ import annotations

import json
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.row_tracking.backfill import (
    RowIdAudit,
    lacks_row_ids,
    row_counts,
    with_row_counts,
)
from delta_maintenance.protocol.row_tracking.row_ids import NO_ROW_ID


def adds(*rows: tuple[int | None, int | None], version: int | None = 1) -> pa.Table:
    """Files with the given base row IDs and row counts."""
    return pa.table(
        {
            "path": pa.array([str(n) for n in range(len(rows))], pa.string()),
            "stats": pa.array(
                [None if n is None else json.dumps({"numRecords": n}) for _, n in rows], pa.string()
            ),
            "baseRowId": pa.array([first for first, _ in rows], pa.int64()),
            "defaultRowCommitVersion": pa.array([version] * len(rows), pa.int64()),
        }
    )


def audited(live: pa.Table, tombstones: pa.Table | None = None) -> RowIdAudit:
    audit = RowIdAudit()
    audit.add(live, adds() if tombstones is None else tombstones)
    return audit


@pytest.mark.conformance("RT-11")
def test_a_file_needs_both_row_tracking_fields() -> None:
    both = pa.table(
        {"baseRowId": [1, 1, None, None], "defaultRowCommitVersion": [2, None, 2, None]}
    )
    assert lacks_row_ids(both).to_pylist() == [False, True, True, True]
    assert lacks_row_ids(pa.table({"path": ["a"]})).to_pylist() == [True]


def test_row_counts_come_from_either_form_of_statistics() -> None:
    parsed = pa.array([{"numRecords": 1}, {"numRecords": 2}, {"numRecords": -1}, None])
    batch = pa.table(
        {
            "path": list("abcd"),
            "stats": [None, '{"numRecords":7}', None, None],
            "stats_parsed": parsed,
        }
    )
    assert row_counts(batch).to_pylist() == [1, 7, None, None]
    other = batch.set_column(2, "stats_parsed", pa.array([{"minValues": 1}] * 4))
    assert row_counts(other).to_pylist() == [None, 7, None, None]


@pytest.mark.parametrize(
    ("stats", "filled"),
    [
        (None, '{"numRecords":5}'),
        ("{}", '{"numRecords":5}'),
        (" { } ", '{"numRecords":5}'),
        ('{"minValues":{"a":1.10}}', '{"numRecords":5,"minValues":{"a":1.10}}'),
        ('{"numRecords":"x","minValues":{}}', '{"numRecords":5}'),
        ('{"minValues":{"numRecords":1}}', '{"numRecords":5,"minValues":{"numRecords":1}}'),
        *((f'{{"numRecords":{bad}}}', '{"numRecords":5}') for bad in ("null", "-1", "5.5", "[5]")),
        ('{"numRecords":"5","a":{"numRecords":5}}', '{"numRecords":5}'),
        ("nonsense", '{"numRecords":5}'),
        ("[1]", '{"numRecords":5}'),
        ('{"minValues":', '{"numRecords":5}'),
        ("", '{"numRecords":5}'),
    ],
)
def test_row_counts_are_inserted_into_statistics(stats: str | None, filled: str) -> None:
    texts = pa.array([stats, stats], pa.string())
    counted = with_row_counts(texts, pa.array([5, None], pa.int64()))
    assert counted.to_pylist() == [filled, stats]
    assert row_counts(pa.table({"stats": counted}))[0].as_py() == 5


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=12)


@pytest.mark.conformance("RT-02")
@given(files=ranges, gone=ranges)
def test_the_audit_equals_a_pairwise_comparison(
    files: list[tuple[int, int]], gone: list[tuple[int, int]]
) -> None:
    half = len(files) // 2
    audit = RowIdAudit()
    audit.add(adds(*files[:half]), adds(*gone))
    audit.add(adds(*files[half:]), adds())
    found = audit.findings()
    spans = [set(range(first, first + rows)) for first, rows in files]
    shared = {row for one, other in combinations(spans, 2) for row in one & other}
    assert (found.shared is None) == (not shared)
    assert found.shared in {None, *shared}
    highest = max((first + rows - 1 for first, rows in [*files, *gone]), default=NO_ROW_ID)
    assert found.highest == max(highest, NO_ROW_ID)
    assert (found.files, found.lacking) == (len(files), 0)


def test_the_audit_counts_files_without_row_ids() -> None:
    audit = audited(adds((None, 5), (None, None), (3, 4)))
    audit.add(adds((7, None), version=None), adds((90, None)))
    found = audit.findings()
    assert (found.files, found.lacking, found.uncounted, found.rows) == (4, 3, 2, 5)
    # A file with an unknown row count has at least one row.
    assert (found.highest, found.shared) == (90, None)


def test_row_ids_above_64_bits_are_corruption() -> None:
    with pytest.raises(CorruptTableError, match="64 bits"):
        audited(adds((2**63 - 1, 2)))
