"""Whole tables as files by path: real tables of many writers, and constructed ones."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from delta_maintenance.storage import MemoryStore
from tests.support.rewrites.data_files import (
    ROW_TRACKING,
    field,
    inline_vector,
    parquet,
    schema_string,
)
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

_MOST_BYTES = 400_000
"""The most bytes of a real table: larger ones make every case slow and contain nothing else."""
_DAY_MS = 86_400_000
_STATS = '{"numRecords":3,"minValues":{"id":1},"maxValues":{"id":9},"nullCount":{"id":0}}'


@dataclass(frozen=True)
class Files:
    """One table."""

    name: str
    contents: Mapping[str, bytes]
    """By path relative to the root."""
    has_rows: bool = False
    """Whether its data files can be read."""

    def put_into(self, store: MemoryStore) -> None:
        """Writes every file; commits are one minute apart and long ago."""
        for path, data in sorted(self.contents.items()):
            written = self._written_ms(path)
            store.now_ms = lambda written=written: written
            store.put(path, data)

    def write_below(self, root: Path) -> None:
        """The same on a disk, including names that stores refuse to write."""
        for path, data in sorted(self.contents.items()):
            place = os.path.join(root, path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(data)
            instant = self._written_ms(path) / 1000
            os.utime(place, (instant, instant))

    def _written_ms(self, path: str) -> int:
        return EPOCH_MS + _age(path)


def tables(corpus: Path) -> list[Files]:
    """All tables, in the same order on every machine."""
    return [*_real(corpus), *made_by_hand()]


@cache
def _real(corpus: Path) -> list[Files]:
    found = []
    for root in sorted(path.parent for path in corpus.glob("*/_delta_log")):
        paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        if sum(path.stat().st_size for path in paths) <= _MOST_BYTES:
            contents = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
            found.append(Files(root.name, contents))
    return found


@cache
def made_by_hand() -> tuple[Files, ...]:
    """Tables with every kind of file and action that the protocol has."""
    return tuple(_files(name, build) for name, build in _BUILDERS.items())


def pick(candidates: list[Files], chance: random.Random) -> Files:
    """One of the tables; constructed ones more often than their share."""
    by_hand = [table for table in candidates if table.name in _BUILDERS]
    return chance.choice(by_hand if chance.random() < 0.3 else candidates)


def _age(path: str) -> int:
    name = path.rpartition("/")[2]
    version = int(name[:20]) if name[:20].isdigit() else 0
    return -60 * _DAY_MS + min(version, 10_000) * MINUTE_MS


def _files(name: str, build: Callable[[TableBuilder], None]) -> Files:
    builder = TableBuilder()
    build(builder)
    contents = {path: builder.store.read(path) for path in _paths(builder)}
    return Files(name, contents, has_rows=build is _rows)


def _paths(builder: TableBuilder) -> set[str]:
    (batch,) = MemoryStore.list_tree(builder.store)
    return set(batch["path"].to_pylist())


def _begin(table: TableBuilder, *features: str, writer_only: tuple[str, ...] = ()) -> None:
    table.commit(
        [
            log.commit_info("CREATE", inCommitTimestamp=EPOCH_MS),
            log.features(*features, writer_only=writer_only)
            if features or writer_only
            else log.protocol(),
            log.metadata(
                partitioned_by=["part"],
                configuration={
                    "delta.checkpointInterval": "5",
                    "delta.deletedFileRetentionDuration": "interval 1 week",
                    "delta.logRetentionDuration": "interval 30 days",
                },
            ),
        ]
    )


def _write(table: TableBuilder, number: int, **fields: object) -> None:
    values = {"part": f"p{number % 2}"}
    gone = [log.remove(f"f{number - 2}", partitionValues=values)] if number > 2 else []
    table.commit(
        [
            log.commit_info("WRITE", txnId=f"t{number}", inCommitTimestamp=EPOCH_MS + number),
            log.add(f"f{number}", partitionValues=values, stats=_STATS, **fields),
            *gone,
            log.txn("app", number),
        ]
    )


def _plain(table: TableBuilder) -> None:
    _begin(table)
    for number in range(1, 7):
        _write(table, number, tags={"k": "v"})
    table.checkpoint(3)
    table.checkpoint(5, parts=2)
    table.compaction(1, 3)
    table.hint(5)
    table.checksum(6, {"tableSizeBytes": 20, "numFiles": 2, "numMetadata": 1, "numProtocol": 1})
    table.write("_last_vacuum_info", b'{"latestCommitVersionOutsideOfRetentionWindow":1}')


def _v2(table: TableBuilder) -> None:
    _begin(table, "v2Checkpoint", "deletionVectors", writer_only=("appendOnly", "invariants"))
    for number in range(1, 5):
        _write(table, number, dv=log.deletion_vector() if number == 4 else None)
    table.v2_checkpoint(2, sidecars=2)
    other = "00000000-0000-4000-8000-111111111111"
    table.v2_checkpoint(4, encoding="parquet", sidecars=1, uuid=other)
    table.hint(4)


def _tracked(table: TableBuilder) -> None:
    names = ("appendOnly", "invariants", "domainMetadata", "rowTracking", "inCommitTimestamp")
    _begin(table, "columnMapping", writer_only=names)
    table.commit([log.domain("delta.rowTracking", '{"rowIdHighWaterMark":11}')])
    for number in range(2, 5):
        _write(table, number, baseRowId=3 * number, defaultRowCommitVersion=number)
    table.checkpoint(3)


def _rows(table: TableBuilder) -> None:
    """Data files with rows and vectors."""
    names = ("appendOnly", "invariants", "domainMetadata", "rowTracking")
    configuration = {
        **ROW_TRACKING,
        "delta.checkpointPolicy": "v2",
        # Checkpoints of versions whose retention ends soon are not incremental.
        "delta.logRetentionDuration": "interval 9999 days",
    }
    fields = [field("id", "long"), field("name", "string"), field("part", "string")]
    table.commit(
        [
            log.commit_info("CREATE"),
            log.features("v2Checkpoint", "deletionVectors", writer_only=names),
            log.metadata(
                schemaString=schema_string(*fields),
                partitioned_by=["part"],
                configuration=configuration,
            ),
        ]
    )
    for number in range(8):
        rows = {"id": range(5 * number, 5 * number + 5), "name": [f"n{number}", None, "", "x", "y"]}
        data = parquet(pa.table(rows))
        path = f"part=p{number % 2}/part-{number:05}-c000.snappy.parquet"
        table.store.put(path, data)
        given = {
            "partitionValues": {"part": f"p{number % 2}"},
            "stats": '{"numRecords":5}',
            "size": len(data),
            "baseRowId": 5 * number,
            "defaultRowCommitVersion": number + 1,
        }
        mark = json.dumps({"rowIdHighWaterMark": 5 * number + 4})
        vector = inline_vector((1, 3)) if number in (2, 5) else None
        lines = [log.add(path, dv=vector, **given), log.domain("delta.rowTracking", mark)]
        table.commit([log.commit_info("WRITE"), *lines])
        if number == 5:
            table.v2_checkpoint(6, encoding="parquet", sidecars=3)
            table.hint(6)


_BUILDERS: Mapping[str, Callable[[TableBuilder], None]] = {
    "hand-plain": _plain,
    "hand-v2": _v2,
    "hand-tracked": _tracked,
    "hand-rows": _rows,
}
