"""Two neglected tables: hundreds of commits without a checkpoint, and small files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake

from delta_maintenance import clock

COMMITS = 400
DEVICES = 40
"""One file each per commit: the table is partitioned by hour and device."""
READINGS = 8
CHANNELS = 24
KEPT_HOURS = 40
"""Every so many hours, what is older is deleted."""
FIRST_HOUR = 1_780_000_000 // 3600

SMALL_FILES = 120

# What deltalake would otherwise do after every 100th commit.
_NO_CHECKPOINT = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def write_neglected_table(path: Path) -> Iterator[int]:
    """Writes the table with deltalake; yields the number of commits written so far.

    Every commit is an hour's upload of some devices. At the end the table is given the feature
    v2Checkpoint and the policy to use it, by a commit written by hand, since deltalake has no way
    to enable it.
    """
    random = np.random.default_rng(seed=7)
    table: DeltaTable | None = None
    for hour in range(COMMITS):
        write_deltalake(
            path if table is None else table,
            _upload(FIRST_HOUR + hour, random),
            mode="append",
            partition_by=["hour", "device"],
            post_commithook_properties=_NO_CHECKPOINT,
        )
        table = table or DeltaTable(path)
        if hour >= 2 * KEPT_HOURS and hour % KEPT_HOURS == 0:
            table.delete(
                f"hour < {FIRST_HOUR + hour - KEPT_HOURS}",
                post_commithook_properties=_NO_CHECKPOINT,
            )
        yield hour + 1
    assert table is not None
    _enable_v2_checkpoints(path / "_delta_log", table.version())


def write_small_files(path: Path) -> None:
    """Writes a table without partitions with deltalake: a small file for each upload."""
    random = np.random.default_rng(seed=8)
    for hour in range(SMALL_FILES):
        write_deltalake(
            path,
            _upload(FIRST_HOUR + hour, random),
            mode="append",
            post_commithook_properties=_NO_CHECKPOINT,
        )


def _upload(hour: int, random: np.random.Generator) -> pa.Table:
    rows = DEVICES * READINGS
    channels = {f"channel_{number:02}": random.random(rows) for number in range(CHANNELS)}
    devices = [f"device-{number:02}" for number in range(DEVICES) for _ in range(READINGS)]
    times = hour * 3600 + np.arange(rows) % READINGS * 900
    return pa.table(
        {
            "hour": pa.array(np.full(rows, hour), pa.int32()),
            "device": devices,
            "at": pa.array(times * 1_000_000, pa.timestamp("us", "UTC")),
            **channels,
        }
    )


def _enable_v2_checkpoints(log: Path, version: int) -> None:
    first = (log / f"{0:020}.json").read_text().splitlines()
    metadata = next(action["metaData"] for action in map(json.loads, first) if "metaData" in action)
    metadata["configuration"] = {**metadata["configuration"], "delta.checkpointPolicy": "v2"}
    # The features that the protocol versions before (1 and 2) stood for, and the new one.
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["v2Checkpoint"],
        "writerFeatures": ["appendOnly", "invariants", "v2Checkpoint"],
    }
    commit_info = {
        "timestamp": clock.epoch_millis(clock.now()),
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {},
    }
    actions = ({"commitInfo": commit_info}, {"protocol": protocol}, {"metaData": metadata})
    with open(log / f"{version + 1:020}.json", "x") as file:
        file.writelines(json.dumps(action) + "\n" for action in actions)
