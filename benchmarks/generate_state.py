"""Generates a table of many files as a checkpoint of version 1 and small commits after it.

A log of fifty million adds would take longer to write than all that is measured. So the checkpoint
is written by the library's own writer from columns that are made up batch by batch, and the commits
behind it are what a busy table leaves: one new file each, and files of the checkpoint that are
removed by every tenth. As after a clean-up of the log, it begins with the version of
the checkpoint. It is seeded.

Run it as ``python -m benchmarks.generate_state TABLE --files N [--commits N --removes R ...]``.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.generate import COLUMNS, partitions, paths, statistics
from delta_maintenance import open_table
from delta_maintenance.clock import NewId
from delta_maintenance.protocol.actions.file_columns import STRING_MAP
from delta_maintenance.protocol.delta_log.sidecars import sidecar_size
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec, ParquetStyle, layout_of
from delta_maintenance.table.write.checkpoint_writer import write_checkpoint
from delta_maintenance.table.write.sidecar_reuse import NotReusableError, ReuseSurvey
from delta_maintenance.table.write.sidecar_writer import SidecarSet, roll_sidecars
from delta_maintenance.table.write.staging import staging

_BATCH = 100_000
_DAY_MS = 86_400_000
_TOMBSTONES_PER_FILE = 0.1
_MOST_PER_SIDECAR = 50_000
_CHECKPOINT = 1
_REMOVING_COMMITS = 10
"""Every so manieth commit removes files."""
_SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in [*COLUMNS.items(), ("event_date", "date")]
    ],
}
_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["v2Checkpoint"],
    "writerFeatures": ["v2Checkpoint"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """How large a state to make, and what happens after it.

    ``files`` files are live in the checkpoint, beside a tombstone for every tenth of them.
    ``commits`` commits follow, each of which adds ``adds_per_commit`` files; ``removes`` files of
    the checkpoint are removed by every tenth commit, neighbours where ``local``, else any.
    """

    files: int
    commits: int = 0
    adds_per_commit: int = 1
    removes: int = 0
    local: bool = True
    classic: bool = False
    """A single V1 file without the feature, for readers that know no other."""
    seed: int = 7


@dataclass(frozen=True, slots=True)
class _Files:
    """Some files, in columns."""

    path: pa.Array
    partition: pa.Array
    size: npt.NDArray[np.int64]
    statistics: pa.Array

    def adds(self, modified_ms: int) -> pa.Table:
        rows = len(self.size)
        return pa.table(
            {
                "path": self.path,
                "partitionValues": _values(self.partition),
                "size": pa.array(self.size),
                "modificationTime": pa.array(np.full(rows, modified_ms)),
                "dataChange": pa.array(np.zeros(rows, np.bool_)),
                "stats": self.statistics,
            }
        )

    def removes(self, deleted_ms: int) -> pa.Table:
        rows = len(self.size)
        return pa.table(
            {
                "path": self.path,
                "deletionTimestamp": pa.array(np.full(rows, deleted_ms)),
                "dataChange": pa.array(np.zeros(rows, np.bool_)),
                "extendedFileMetadata": pa.array(np.ones(rows, np.bool_)),
                "partitionValues": _values(self.partition),
                "size": pa.array(self.size),
            }
        )


class _GeneratedSidecars:
    """A sidecar engine that makes up what it writes."""

    def __init__(self, shape: StateShape, now_ms: int, new_id: NewId) -> None:
        self._shape = shape
        self._now_ms = now_ms
        self._new_id = new_id
        rng = np.random.default_rng(shape.seed + 1)
        first = shape.files // 2
        wanted = (
            np.arange(first, first + shape.removes)
            if shape.local
            else np.sort(rng.choice(shape.files, shape.removes, replace=False))
        )
        self._wanted = wanted
        self.chosen: list[pa.Table] = []
        """The files that later commits are to remove."""

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        raise NotReusableError("all is new")

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        files = ((batch, 0) for batch in self.batches())
        with staging() as staged:
            return roll_sidecars(files, spec, staged, snapshot.log.store, self._new_id)

    def batches(self) -> Iterator[ActiveFiles]:
        shape, rng = self._shape, np.random.default_rng(self._shape.seed)
        for start in range(0, shape.files, _BATCH):
            count = min(_BATCH, shape.files - start)
            files = _files(rng, count, self._now_ms)
            dead = _files(rng, int(count * _TOMBSTONES_PER_FILE), self._now_ms)
            adds = files.adds(self._now_ms - _DAY_MS)
            bounds = np.searchsorted(self._wanted, [start, start + count])
            mine = self._wanted[bounds[0] : bounds[1]] - start
            if len(mine):
                self.chosen.append(adds.take(pa.array(mine)))
            yield ActiveFiles(adds, dead.removes(self._now_ms - _DAY_MS))


def generate(table: Path, shape: StateShape, *, now_ms: int) -> int:
    """Writes the table; returns the bytes of its log."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    ids = (str(uuid.UUID(int=number)) for number in range(shape.seed << 64, (shape.seed + 1) << 64))
    first_commit = log / f"{0:020}.json"
    first_commit.write_text("".join(_beginning(shape, now_ms)))
    (log / f"{_CHECKPOINT:020}.json").write_text(
        _line(_commit_info(_CHECKPOINT, now_ms, shape.seed))
    )
    snapshot = open_table(str(table)).snapshot()
    actions = int(shape.files * (1 + _TOMBSTONES_PER_FILE))
    spec = CheckpointSpec(
        kind="classic" if shape.classic else "v2-json",
        actions_per_sidecar=sidecar_size(actions, at_most=_MOST_PER_SIDECAR),
        layout=layout_of(snapshot, zone=None),
        style=ParquetStyle(),
        deleted_after_ms=None,
        txns_updated_after_ms=None,
    )
    engine = _GeneratedSidecars(shape, now_ms, ids.__next__)
    if shape.classic:
        # The writer of classic checkpoints takes what the snapshot holds.
        snapshot.log.scan = lambda **_: engine.batches()  # type: ignore[method-assign]
    write_checkpoint(snapshot, spec, new_id=ids.__next__, engine=engine)
    # It has none of the files, so it would contradict the checkpoint.
    first_commit.unlink()
    _write_commits(log, shape, engine.chosen, now_ms)
    return sum(file.stat().st_size for file in log.rglob("*") if file.is_file())


def _write_commits(log: Path, shape: StateShape, chosen: list[pa.Table], now_ms: int) -> None:
    rng = np.random.default_rng(shape.seed + 2)
    new = (
        _files(rng, shape.commits * shape.adds_per_commit, now_ms)
        .adds(now_ms)
        .to_pylist(maps_as_pydicts="strict")
    )
    gone = [row for table in chosen for row in table.to_pylist(maps_as_pydicts="strict")]
    removing = max(1, shape.commits // _REMOVING_COMMITS)
    for number in range(1, shape.commits + 1):
        version = _CHECKPOINT + number
        lines = [_commit_info(version, now_ms, shape.seed)]
        if number % _REMOVING_COMMITS == 0:
            turn = number // _REMOVING_COMMITS - 1
            lines += [_remove(row, now_ms) for row in gone[turn::removing]]
        first = (number - 1) * shape.adds_per_commit
        lines += [{"add": row} for row in new[first : first + shape.adds_per_commit]]
        (log / f"{version:020}.json").write_text("".join(map(_line, lines)))


def _beginning(shape: StateShape, now_ms: int) -> Iterator[str]:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2} if shape.classic else _PROTOCOL
    metadata = {
        "id": str(uuid.UUID(int=shape.seed)),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_SCHEMA),
        "partitionColumns": ["event_date"],
        "configuration": {} if shape.classic else {"delta.checkpointPolicy": "v2"},
        "createdTime": now_ms,
    }
    for action in (
        _commit_info(0, now_ms, shape.seed),
        {"protocol": protocol},
        {"metaData": metadata},
    ):
        yield _line(action)


def _line(action: object) -> str:
    return json.dumps(action, separators=(",", ":")) + "\n"


def _commit_info(version: int, now_ms: int, seed: int) -> dict[str, object]:
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["event_date"]'},
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {"numFiles": "1", "numOutputRows": "1000000"},
            "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
            "txnId": str(uuid.UUID(int=(seed << 64) + version)),
        }
    }


def _remove(row: dict[str, object], now_ms: int) -> dict[str, object]:
    kept = {name: row[name] for name in ("path", "partitionValues", "size")}
    return {
        "remove": {
            **kept,
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
        }
    }


def _files(rng: np.random.Generator, count: int, now_ms: int) -> _Files:
    partition = partitions(rng, count, now_ms)
    added_ms = np.full(count, now_ms - _DAY_MS)
    return _Files(
        paths(rng, partition, np.arange(count) % 1000),
        partition,
        rng.integers(4 << 20, 160 << 20, count),
        statistics(rng, added_ms),
    )


def _values(partition: pa.Array) -> pa.MapArray:
    keys = pa.array(["event_date"]).take(pa.array(np.zeros(len(partition), np.int64)))
    offsets = pa.array(np.arange(len(partition) + 1, dtype=np.int32))
    return pa.MapArray.from_arrays(offsets, keys, partition.cast(pa.string())).cast(STRING_MAP)


def _flag(text: str) -> bool:
    return bool(int(text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate a Delta table as a large checkpoint.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--commits", type=int, default=0)
    parser.add_argument("--adds-per-commit", type=int, default=1)
    parser.add_argument("--removes", type=int, default=0)
    parser.add_argument("--local", type=_flag, default=True, help="0 or 1")
    parser.add_argument("--classic", type=_flag, default=False, help="0 or 1")
    parser.add_argument("--seed", type=int, default=7)
    given = vars(parser.parse_args())
    table = given.pop("table")
    shape = StateShape(
        **{**given, "local": bool(given["local"]), "classic": bool(given["classic"])}
    )
    size = generate(table, shape, now_ms=time.time_ns() // 1_000_000)
    print(f"{table}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
