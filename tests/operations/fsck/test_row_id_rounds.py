"""Row IDs are compared in rounds of bounded size, with the same findings for each reader."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.operations.fsck.checks import row_ids as check_row_ids
from delta_maintenance.operations.fsck.checks.row_ids import (
    FILES,
    PARTS,
    LocalRowIds,
    PartReading,
    RowIdReader,
)
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.protocol.row_tracking.row_ids import UsedRowIds
from delta_maintenance.protocol.schema import StructType
from delta_maintenance.storage import MemoryStore
from tests.support.rewrites.data_files import ROW_ID, inline_vector, parquet, put

NOTHING = StructType(fields=())
LAYOUT = DataFileLayout(
    columns=NOTHING,
    partition_columns=NOTHING,
    mode="none",
    row_id_column=ROW_ID,
    row_version_column="_version",
)
ROUND, PART, BLOCK = 12, 3, 5


@dataclass(frozen=True)
class File:
    """The stored row IDs of a file, of which some are deleted; null for the default ones."""

    ids: list[int | None]
    base: int
    deleted: list[int] = field(default_factory=list)
    readable: bool = True

    @property
    def live(self) -> list[int]:
        ids = [self.base + at if value is None else value for at, value in enumerate(self.ids)]
        return [value for at, value in enumerate(ids) if at not in self.deleted]


@st.composite
def files(draw: st.DrawFn) -> File:
    numbers = st.one_of(st.none(), st.integers(0, 60))
    ids = draw(st.lists(numbers, max_size=14))
    deleted = draw(st.lists(st.integers(0, max(0, len(ids) - 1)), unique=True, max_size=3))
    readable = draw(st.integers(0, 9)) > 0
    return File(ids, draw(st.integers(0, 60)), sorted(deleted) if ids else [], readable)


def written(given: list[File]) -> tuple[MemoryStore, pa.Table]:
    """The files in a store, and the rows of `Presence.present` for them."""
    store, sizes = MemoryStore(), []
    for number, file in enumerate(given):
        data = parquet(pa.table({ROW_ID: pa.array(file.ids, pa.int64())}), row_group_size=4)
        put(store, f"f{number}", data if file.readable else b"x" * len(data))
        sizes.append(len(data))
    names = [f"f{number}" for number in range(len(given))]
    vectors = [inline_vector(file.deleted) if file.deleted else None for file in given]
    columns = {
        "path": pa.array(names, pa.string()),
        "location": pa.array(names, pa.string()),
        "size": pa.array(sizes, pa.int64()),
        "deletionVector": pa.array(vectors, FILES.field("deletionVector").type),
        "baseRowId": pa.array([file.base for file in given], pa.int64()),
        "defaultRowCommitVersion": pa.array([1] * len(given), pa.int64()),
    }
    return store, pa.table(columns)


class Tasks:
    """A `RowIdReader` that divides the files of a round as a cluster does."""

    def __init__(self, store: MemoryStore, *, files_per_round: int, tasks: int, seed: int) -> None:
        self.files_per_round = files_per_round
        self.most_returned = 0
        self._store = store
        self._tasks = tasks
        self._random = random.Random(seed)

    def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
        assert files.schema == FILES and 0 < files.num_rows <= self.files_per_round
        first = files["at"][0].as_py()
        reading = PartReading(
            layout=LAYOUT,
            first=first,
            passed=passed,
            most_ranges=ROUND // self._tasks,
            per_part=PART,
        )
        owners = np.array([self._random.randrange(self._tasks) for _ in range(files.num_rows)])
        batches = []
        for task in range(self._tasks):
            mine = files.filter(pa.array(owners == task))
            own = [pa.Table.from_batches([batch]) for batch in mine.to_batches(max_chunksize=2)]
            batches += reading.read(self._store, own)
        self._random.shuffle(batches)
        parts = pa.Table.from_batches(batches, PARTS)
        self.most_returned = max(self.most_returned, ranges_in(parts))
        return parts


def ranges_in(parts: pa.Table) -> int:
    return len(parts["firsts"].combine_chunks().flatten())


def checked(reader: RowIdReader, present: pa.Table) -> tuple[dict[str, int], list[str], int]:
    """The repeated row ID by path, the paths in the order of the findings, and the number of files
    that were not compared.
    """
    findings = Findings()
    uncompared = check_row_ids.check_row_ids(reader, present, findings, version=3)
    rows = findings.table().to_pylist()
    text = "another row also has the row ID "
    assert all(row["problem"].startswith(text) and row["version"] == 3 for row in rows)
    found = {row["path"]: int(row["problem"].removeprefix(text)) for row in rows}
    assert len(found) == len(rows)
    return found, [row["path"] for row in rows], uncompared


def expected(given: list[File]) -> dict[str, int]:
    """The smallest row ID of each file that an earlier row has too."""
    seen, found = set[int](), {}
    for number, file in enumerate(given):
        if file.readable:
            repeated = [each for each in file.live if each in seen or file.live.count(each) > 1]
            if repeated:
                found[f"f{number}"] = min(repeated)
            seen |= set(file.live)
    return found


@pytest.mark.conformance("RT-19")
@given(st.lists(files(), max_size=12), st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
@example([File([2 * at for at in range(40)], 0), File([7, 8], 0), File([78], 0)], 3, 4, 0)
def test_every_reader_leads_to_the_same_findings_in_the_order_of_the_files(
    given: list[File], files_per_round: int, tasks: int, seed: int
) -> None:
    store, present = written(given)
    cluster = Tasks(store, files_per_round=files_per_round, tasks=tasks, seed=seed)
    found, order, uncompared = checked(cluster, present)
    assert found == expected(given)
    assert order == sorted(order, key=lambda path: int(path[1:]))
    assert uncompared == sum(not file.readable for file in given)
    assert checked(LocalRowIds(store, LAYOUT), present) == (found, order, uncompared)


@given(
    st.lists(files(), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 30),
)
@example([File([2 * at for at in range(40)], 0), File([79], 0)], 1, 1, 10)
@example([File([2 * at for at in range(14)], 0)] * 12, 6, 2, 30)
def test_the_number_of_ranges_in_memory_is_bounded(
    given: list[File], files_per_round: int, tasks: int, most: int
) -> None:
    store, present = written(given)
    cluster = Tasks(store, files_per_round=files_per_round, tasks=tasks, seed=most)
    local = LocalRowIds(store, LAYOUT, ranges_per_part=PART)
    kept: list[int] = []
    add = UsedRowIds.add

    def counted(used: UsedRowIds, parts: check_row_ids.IdParts) -> object:
        assert len(parts.firsts) < BLOCK + PART
        found = add(used, parts)
        kept.append(len(used))
        return found

    waiting: list[int] = []
    take = check_row_ids._Comparison.add

    def watched(comparison: check_row_ids._Comparison, parts: pa.Table) -> None:
        take(comparison, parts)
        if not comparison.is_full:
            waiting.append(ranges_in(comparison._waiting))

    with (
        patch.multiple(check_row_ids, MOST_RANGES=most, _RANGES_PER_BLOCK=BLOCK),
        patch.object(check_row_ids._Comparison, "add", watched),
        patch.object(UsedRowIds, "add", counted),
    ):
        by_tasks = checked(cluster, present)
    assert max(kept, default=0) < most + BLOCK + PART
    assert max(waiting, default=0) < BLOCK
    assert cluster.most_returned <= ROUND
    with patch.multiple(check_row_ids, MOST_RANGES=most, _RANGES_PER_BLOCK=BLOCK):
        assert checked(local, present) == by_tasks


def test_a_reader_in_this_process_is_bounded_too() -> None:
    store, present = written([File([2 * at for at in range(40)], 0), File([7, 8], 0)])
    local = LocalRowIds(store, LAYOUT, ranges_per_round=ROUND, ranges_per_part=PART)
    first = check_row_ids._files(present, 0)
    parts = local(first, passed=0)
    assert ranges_in(parts) == ROUND and set(parts["at"].to_pylist()) == {0}
    rest = local(first, passed=18)
    assert rest["part"].to_pylist() == [18, 19, 0]
    assert rest["complete"].to_pylist() == [None, True, True]
    assert checked(local, present) == ({"f1": 8}, ["f1"], 0)


def test_a_damaged_file_is_compared_up_to_its_damage() -> None:
    ids = [*range(0, 24, 2)]
    store, present = written([File([], 0), File([6, 22], 0)])
    plain = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    rows = pa.table({ROW_ID: pa.array(ids, pa.int64())})
    whole = parquet(rows, row_group_size=4, **plain)
    changed = np.array(ids[8:], np.int64).tobytes()
    assert whole.count(changed) == 1
    store.put("f0", whole.replace(changed, changed[::-1]))
    sizes = [len(whole), present["size"][1].as_py()]
    present = present.set_column(2, "size", pa.array(sizes, pa.int64()))
    # The last part before the damage is incomplete, and is not compared.
    reader = LocalRowIds(store, LAYOUT, ranges_per_part=2)
    assert checked(reader, present) == ({"f1": 6}, ["f1"], 1)
    present = present.slice(0, 1)
    tasks = Tasks(store, files_per_round=1, tasks=1, seed=0)
    assert checked(tasks, present) == ({}, [], 1)


def test_a_file_that_vanishes_between_two_rounds_counts_as_not_compared() -> None:
    store, present = written([File([2 * at for at in range(40)], 0), File([1, 4], 0)])
    tasks = Tasks(store, files_per_round=1, tasks=1, seed=0)

    class Vanishing(Tasks):
        def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
            if passed:
                store.delete("f0")
            return super().__call__(files, passed=passed)

    assert checked(tasks, present) == ({"f1": 4}, ["f1"], 0)
    tasks = Vanishing(store, files_per_round=1, tasks=1, seed=0)
    assert checked(tasks, present) == ({"f1": 4}, ["f1"], 1)


def test_a_reader_that_omits_the_first_part_is_an_error() -> None:
    class Omitting(Tasks):
        def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
            return super().__call__(files, passed=passed + 1)

    store, present = written([File([2 * at for at in range(40)], 0)])
    with pytest.raises(RuntimeError, match="omitted the part"):
        checked(Omitting(store, files_per_round=1, tasks=1, seed=0), present)
