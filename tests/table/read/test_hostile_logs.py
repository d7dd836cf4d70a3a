"""Small files of a log that would cost much, or hide what the others say, were they believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from delta_maintenance.errors import MOST_BYTES, CorruptTableError, StorageError
from delta_maintenance.operations import backfill_row_ids, checkpoint, fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.protocol.delta_log import classic_checkpoint_name, commit_name
from delta_maintenance.storage import MemoryStore
from tests.support.suite.usage import measured
from tests.support.tables.actions import (
    add,
    commit_info,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.table_builder import LOG, TableBuilder, parquet_bytes

NOW = datetime(2026, 6, 30, tzinfo=UTC)
MANY_FIELDS = {f"key{number}": "v" for number in range(6_000)}


def table(store: MemoryStore | None = None) -> TableBuilder:
    builder = TableBuilder(store)
    builder.commit([commit_info(), protocol(), metadata(), add("a"), add("b")])
    builder.commit([commit_info(), remove("a"), add("c")])
    return builder


def kinds(builder: TableBuilder, *, deep: bool = False) -> dict[str, int]:
    plan = fsck.plan(builder.open(), FsckOptions(deep=deep), context=RunContext.at(NOW))
    return {count.kind: count.count for count in plan.counts if count.kind != "missing-data-file"}


# Versions


@pytest.mark.parametrize("stray", [200_000_000, 10**15, 2**63 - 1])
def test_a_gap_costs_nothing_regardless_of_its_width(stray: int) -> None:
    builder = table()
    builder.commit([commit_info(), add("d")], version=stray)
    with measured() as taken:
        counts = kinds(builder, deep=True)
    assert counts["log-gap"] == 1
    assert taken.memory < 64 << 20
    assert taken.seconds < 5


# Lines


def test_partition_values_that_no_column_has_cost_no_more_than_their_bytes() -> None:
    builder = table()
    values = {f"key{number}": "v" for number in range(20_000)}
    builder.commit([commit_info(), add("d", partitionValues=values)])
    with measured() as taken:
        snapshot = builder.open().snapshot()
        checkpoint.apply(builder.open(), checkpoint.plan(snapshot, context=RunContext.at(NOW)))
    assert taken.seconds < 10
    again = builder.open().snapshot()
    assert again.log.checkpoint is not None
    assert sorted(again.live_files()["path"].to_pylist()) == ["b", "c", "d"]


def test_thousands_of_unknown_fields_cost_no_more_than_their_bytes() -> None:
    builder = table()
    vector = deletion_vector() | MANY_FIELDS
    stats = '{"numRecords":1,"tightBounds":false}'
    new = add("d", dv=vector, odd=MANY_FIELDS, stats=stats)
    old = [remove("b"), remove("c")]
    builder.commit([features("deletionVectors"), *old, new])
    with measured() as taken:
        wanted = backfill_row_ids.plan(builder.open().snapshot(), context=RunContext.at(NOW))
        result = backfill_row_ids.apply(builder.open(), wanted)
    assert taken.seconds < 10
    assert result.status == "enabled"
    assert "the limit is 1000" in " ".join(result.notes)
    rewritten = json.loads(builder.read(commit_name(4)).splitlines()[-1])["add"]
    assert (rewritten["odd"], rewritten["deletionVector"]) == (MANY_FIELDS, vector)


@pytest.mark.parametrize("line", ['{"add":{"path":"x","tags":%s}}', '{"commitInfo":{"x":%s}}'])
def test_nesting_ends_in_an_error_and_not_in_the_end_of_the_process(line: str) -> None:
    for depth in (100, 1_000, 100_000):
        builder = table()
        builder.commit([line % ("[" * depth + "]" * depth)])
        try:
            builder.open().snapshot().live_files()
        except CorruptTableError as error:
            assert commit_name(2) in str(error) and error.remedy


# Checkpoints


def _other_types(columns: pa.Table) -> bytes:
    texts = {name: pa.array(["text"] * columns.num_rows) for name in columns.column_names}
    return parquet_bytes(pa.table(texts))


def _numbers(columns: pa.Table) -> bytes:
    numbers = {name: pa.array([7] * columns.num_rows) for name in columns.column_names}
    return parquet_bytes(pa.table(numbers))


@pytest.mark.parametrize(
    "damaged", [_other_types, _numbers, lambda _: b"PAR1", lambda _: b"PARE" * 9, lambda _: b"\0"]
)
def test_commits_are_used_if_a_checkpoint_is_unusable(damaged: Callable[[pa.Table], bytes]) -> None:
    builder = table()
    columns = pa.table({name: [None] for name in ("add", "remove", "metaData", "protocol", "txn")})
    builder.write(classic_checkpoint_name(1), damaged(columns))
    snapshot = builder.open().snapshot()
    assert sorted(snapshot.live_files()["path"].to_pylist()) == ["b", "c"]
    assert kinds(builder) == {"unreadable-checkpoint": 1}


# Stores that err


class _ForgetfulStore(MemoryStore):
    """Answers with nothing some times, although the file is there."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = 0
        self.times = times

    def read(self, path: str) -> bytes:
        if path.endswith(commit_name(1)) and self.left:
            self.left -= 1
            return b""
        return super().read(path)


def test_an_empty_answer_is_looked_at_twice() -> None:
    store = _ForgetfulStore(1)
    builder = table(store)
    store.left = 1
    assert sorted(builder.open().snapshot().live_files()["path"].to_pylist()) == ["b", "c"]
    store.left = 10**6
    with pytest.raises(StorageError, match="returned 0 bytes of a file of") as failure:
        builder.open().snapshot().live_files()
    assert failure.value.remedy is not None and "remove" not in failure.value.remedy


def test_an_empty_commit_is_to_be_restored() -> None:
    builder = table()
    builder.write(commit_name(1), b"")
    with pytest.raises(CorruptTableError, match="the file is empty"):
        builder.open().snapshot()


# Messages


def test_a_message_is_short_regardless_of_what_it_quotes() -> None:
    features = [f"feature{number}-{'x' * 40}" for number in range(50_000)]
    builder = TableBuilder()
    builder.commit([protocol(3, 7, reader_features=features, writer_features=features), metadata()])
    with pytest.raises(Exception) as failure:
        checkpoint.plan(builder.open().snapshot(), context=RunContext.at(NOW))
    assert len(str(failure.value).encode()) <= MOST_BYTES
    deep = "d" * 9000
    line = str(CorruptTableError(deep, table=deep, file=deep, remedy=deep).locate(version=5))
    assert len(line.encode()) <= MOST_BYTES
    assert "version 5" in line and "file d" in line and "table d" in line


def test_a_path_in_a_message_stays_on_one_line() -> None:
    error = CorruptTableError("a\nb\x1b[2J\udcff", file="\n\n")
    assert "\n" not in str(error)
    json.dumps(str(error)).encode()


def test_a_hostile_name_is_listed_and_ignored() -> None:
    builder = table()
    assert isinstance(builder.store, MemoryStore)
    for name in ("a\u202egnp", "x.crc.y", "0" * 300):
        builder.store.put(f"{LOG}/{name}", b"x")
    assert kinds(builder)["unknown-file"] == 3
