"""Generates the transaction log of a large, neglected Delta table: commits only, no data files.

The log is what Spark leaves behind: partitioned paths, statistics for six columns on every
``add``, and removes spread over the commits after the file's own. It is seeded, so two logs with
one seed differ only in their times, which end now: a tombstone then counts as unexpired.

Run it as ``python -m benchmarks.generate TABLE [--commits N --adds M --removes R ...]``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SPAN_MS = 5 * 86_400_000
"""The time between the first commit and now; shorter than the week a tombstone is kept."""

_PARTITIONS = 90
_CHUNK_FILES = 100_000
_MS_PER_DAY = 86_400_000

COLUMNS = {
    "order_id": "long",
    "customer": "string",
    "ordered_at": "timestamp",
    "amount": "double",
    "ship_date": "date",
    "quantity": "long",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShape:
    """How large a log to make.

    ``commits`` commits add ``adds`` files between them, evenly; ``removes`` of those files are
    removed by commits after their own. A tail, where there is one, is what follows a checkpoint:
    further, smaller commits, and all the removes fall into it.
    """

    commits: int
    adds: int
    removes: int
    tail_commits: int = 0
    tail_adds: int = 0
    seed: int = 7

    def __post_init__(self) -> None:
        if self.commits < 1 or min(self.adds, self.removes, self.tail_commits, self.tail_adds) < 0:
            raise ValueError("a log has at least one commit and no negative number of files")
        if self.removes > self.removable:
            raise ValueError(
                f"only {self.removable} files have a commit after their own, "
                f"so {self.removes} cannot be removed"
            )

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """File ordinals, one more than commits: commit ``i`` adds ``bounds[i]:bounds[i + 1]``."""
        head = np.linspace(0, self.adds, self.commits + 1).astype(np.int64)
        tail = np.linspace(0, self.tail_adds, self.tail_commits + 1).astype(np.int64)
        return np.concatenate([head, self.adds + tail[1:]])

    @property
    def removable(self) -> int:
        """The number of files that the last commit did not add."""
        return int(self.bounds[-2])


def generate(table: Path, shape: LogShape, *, now_ms: int) -> int:
    """Write a log of ``shape`` under ``table``, newest commit at ``now_ms``; returns its bytes."""
    rng = np.random.default_rng(shape.seed)
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    bounds = shape.bounds
    commits, files = len(bounds) - 1, int(bounds[-1])
    commit_of_file = np.repeat(np.arange(commits), np.diff(bounds))
    commit_ms = now_ms - _SPAN_MS + _SPAN_MS * np.arange(1, commits + 1) // commits

    partition = partitions(rng, files, now_ms)
    path = paths(rng, partition, np.arange(files) - bounds[commit_of_file])
    size = rng.integers(4 << 20, 160 << 20, files)
    removes, removes_bounds = _removes(rng, shape, commit_of_file, commit_ms, path, partition, size)

    written = 0
    chunk_start, adds = 0, pa.array([], pa.string())
    for version in range(commits):
        start, end = int(bounds[version]), int(bounds[version + 1])
        if end > chunk_start + len(adds):
            last = int(np.searchsorted(bounds, start + _CHUNK_FILES, side="right")) - 1
            rows = slice(start, max(end, int(bounds[last])))
            added_ms = commit_ms[commit_of_file[rows]]
            chunk_start, adds = start, _adds(rng, path[rows], partition[rows], size[rows], added_ms)
        commit = b"".join(
            [
                _header(version, int(commit_ms[version]), shape.seed),
                _bytes(adds, start - chunk_start, end - chunk_start),
                _bytes(removes, int(removes_bounds[version]), int(removes_bounds[version + 1])),
            ]
        )
        file = log / f"{version:020}.json"
        file.write_bytes(commit)
        os.utime(file, ns=(int(commit_ms[version]) * 1_000_000,) * 2)
        written += len(commit)
    return written


def partitions(rng: np.random.Generator, count: int, now_ms: int) -> pa.Array:
    """The partition value of each file: one of the last days, as text."""
    days = np.datetime64(now_ms // _MS_PER_DAY, "D") - np.arange(_PARTITIONS)
    values = pa.array([str(day) for day in days])
    return values.take(pa.array(rng.integers(0, _PARTITIONS, count)))


def paths(rng: np.random.Generator, partition: pa.Array, task: npt.NDArray[np.int64]) -> pa.Array:
    """Paths as Spark names them: a partition directory, the task's number and a random UUID."""
    digits = np.frombuffer(rng.bytes(16 * len(task)).hex().encode(), "S1").reshape(-1, 32)
    uuids = np.full((len(task), 36), b"-", "S1")
    kept = np.r_[0:8, 9:13, 14:18, 19:23, 24:36]
    uuids[:, kept] = digits
    uuids[:, 14] = b"4"
    fixed = pa.Array.from_buffers(pa.binary(36), len(task), [None, pa.py_buffer(uuids)])
    number = pc.utf8_lpad(pa.array(task).cast(pa.string()), 5, "0")
    return _joined(
        ["event_date=", partition, "/part-", number, "-"]
        + [fixed.cast(pa.binary()).cast(pa.string()), ".c000.snappy.parquet"]
    )


def _adds(
    rng: np.random.Generator,
    path: pa.Array,
    partition: pa.Array,
    size: npt.NDArray[np.int64],
    added_ms: npt.NDArray[np.int64],
) -> pa.Array:
    """One line of JSON, line feed included, per added file."""
    return _joined(
        ['{"add":{"path":"', path, '","partitionValues":{"event_date":"', partition]
        + ['"},"size":', _text(size), ',"modificationTime":', _text(added_ms)]
        + [',"dataChange":true,"stats":"', statistics(rng, added_ms, quote='\\"'), '"}}\n']
    )


def statistics(
    rng: np.random.Generator, added_ms: npt.NDArray[np.int64], *, quote: str = '"'
) -> pa.Array:
    """The statistics of each file, as JSON."""
    count = len(added_ms)
    records = rng.integers(10_000, 2_000_000, count)
    order_id = rng.integers(0, 1 << 40, count)
    quantity = rng.integers(1, 20, count)
    cents = rng.integers(1, 10_000, count)
    ordered_ms = added_ms - rng.integers(0, 30 * _MS_PER_DAY, count)
    ship_day = ordered_ms // _MS_PER_DAY
    initials = pa.array([f"{chr(65 + i // 26)}{chr(97 + i % 26)}" for i in range(26 * 26)])
    customer = rng.integers(0, 26 * 13, count)

    def values(part: int) -> list[pa.Array | str]:
        return (
            ['{"order_id":', _text(order_id + part * records)]
            + [',"customer":"', initials.take(pa.array(customer + part * 26 * 13))]
            + [f"-customer-{part}", '","ordered_at":"', _instants(ordered_ms + part * 3_600_000)]
            + ['","amount":', _text(cents / 100 + part * 5_000.25)]
            + [',"ship_date":"', _days(ship_day + part * 14)]
            + ['","quantity":', _text(quantity + part * 80), "}"]
        )

    nulls = {name: pa.array(rng.integers(0, 9, count)) for name in COLUMNS}
    null_count: list[pa.Array | str] = []
    for name, column in nulls.items():
        null_count += [f',"{name}":' if null_count else f'{{"{name}":', _text(column)]
    parts = ['{"numRecords":', _text(records), ',"minValues":', *values(0)] + [
        ',"maxValues":',
        *values(1),
        ',"nullCount":',
        *null_count,
        "}}",
    ]
    return _joined([p.replace('"', quote) if isinstance(p, str) else p for p in parts])


def _removes(
    rng: np.random.Generator,
    shape: LogShape,
    commit_of_file: npt.NDArray[np.int64],
    commit_ms: npt.NDArray[np.int64],
    path: pa.Array,
    partition: pa.Array,
    size: npt.NDArray[np.int64],
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The lines that remove files, by commit, and the bounds of each commit's lines in them."""
    file = rng.choice(shape.removable, shape.removes, replace=False)
    first = shape.commits if shape.tail_commits else 0
    commit = rng.integers(np.maximum(commit_of_file[file] + 1, first), len(commit_ms))
    order = np.argsort(commit, kind="stable")
    file, commit = file[order], commit[order]
    lines = _joined(
        ['{"remove":{"path":"', path.take(pa.array(file))]
        + ['","deletionTimestamp":', _text(commit_ms[commit])]
        + [',"dataChange":true,"extendedFileMetadata":true,"partitionValues":{"event_date":"']
        + [partition.take(pa.array(file)), '"},"size":', _text(size[file]), "}}\n"]
    )
    return lines, np.searchsorted(commit, np.arange(len(commit_ms) + 1))


def _header(version: int, commit_ms: int, seed: int) -> bytes:
    """The actions of a commit that are not about files."""
    actions: list[dict[str, object]] = [
        {
            "commitInfo": {
                "timestamp": commit_ms,
                "operation": "WRITE" if version else "CREATE TABLE AS SELECT",
                "operationParameters": {"mode": "Append", "partitionBy": '["event_date"]'},
                "isolationLevel": "Serializable",
                "isBlindAppend": False,
                "operationMetrics": {"numOutputRows": "1000000"},
                "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.1",
                "txnId": str(uuid.UUID(int=(seed << 64) + version)),
            }
        }
    ]
    if version == 0:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in [*COLUMNS.items(), ("event_date", "date")]
        ]
        metadata = {
            "id": str(uuid.UUID(int=seed)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["event_date"],
            "configuration": {},
            "createdTime": commit_ms,
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        actions += [{"protocol": protocol}, {"metaData": metadata}]
    lines = [json.dumps(action, separators=(",", ":")) + "\n" for action in actions]
    return "".join(lines).encode()


def _joined(parts: list[pa.Array | str]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _text(numbers: npt.NDArray[np.generic] | pa.Array) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def _instants(epoch_ms: npt.NDArray[np.int64]) -> pa.Array:
    instants = pa.array(epoch_ms).cast(pa.timestamp("ms"))
    return _joined([pc.strftime(instants, "%Y-%m-%dT%H:%M:%S"), "Z"])


def _days(epoch_days: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(epoch_days.astype(np.int32)).cast(pa.date32()).cast(pa.string())


def _bytes(lines: pa.Array, start: int, end: int) -> bytes:
    """The text of a run of rows, which lies in one piece in the array's data buffer."""
    if start == end:
        return b""
    _, offsets, data = lines.buffers()
    first = np.frombuffer(offsets, np.int32)[lines.offset :]
    return memoryview(data)[first[start] : first[end]].tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the log of a neglected Delta table.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--adds", type=int, default=1_000_000)
    parser.add_argument("--removes", type=int, default=100_000)
    parser.add_argument("--tail-commits", type=int, default=0)
    parser.add_argument("--tail-adds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    given = vars(parser.parse_args())
    table = given.pop("table")
    size = generate(table, LogShape(**given), now_ms=time.time_ns() // 1_000_000)
    print(f"{table}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
