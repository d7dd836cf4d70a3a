"""Checks of tables, and the problems that they find."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from delta_maintenance.operations.fsck.examination import TableExamination, examine
from delta_maintenance.protocol.delta_log.file_names import guarded_names
from tests.support.hostile.encrypted_files import encrypted
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import CONFIGURATION, ROWS, SoundTable, parquet
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder, log_text, parquet_bytes

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)


def look(table: TableBuilder, **options: Any) -> TableExamination:
    return examine(table.open(), now=NOW, **({"deep": True} | options))


VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def problems(table: TableBuilder) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in look(table).findings.first(20):
        found.setdefault(finding.kind, []).append(finding.problem)
    return found


def add_again(table: SoundTable, path: str, **fields: Any) -> log.Action:
    """Returns the add of a live file, with other fields."""
    return {"add": {**table.live(path), "dataChange": False} | fields}


COPY = f"_delta_log/{guarded_names(4, 'lost')[0]}"


def lose_commit(table: SoundTable, *, marked: bool = True) -> None:
    """Writes the copy of a commit of which the log has another version."""
    copy, mark = guarded_names(4, "lost")
    table.write(copy, log_text([log.add("lost")]))
    if marked:
        table.write(mark, b"")


def decimal_partition(value: str) -> Callable[[SoundTable], object]:
    """Adds a file to a table that is partitioned by a decimal number with two digits."""
    kinds = {"id": "long", "part": "string", "d": "decimal(10,2)"}
    fields = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in kinds.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    return lambda table: table.step(
        log.metadata(configuration=CONFIGURATION, schema=schema, partitioned_by=["d"]),
        table.data("e", partitionValues={"d": value}),
        table.mark(),
    )


ROW_ID_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}


def repeat_row_ids(t: SoundTable) -> None:
    """The file stores the same row ID for all of its rows."""
    ids = pa.array([1] * ROWS, pa.int64())
    data = parquet_bytes(pa.table({"id": ids, "part": ["x"] * ROWS, "_row_id": ids}))
    t.store.put("c", data)
    t.step(add_again(t, "c", size=len(data)))


def encrypt_file(t: SoundTable) -> None:
    data = encrypted(pa.table({"a": [1]}), "a", footer=True)
    t.store.put("c", data)
    t.step(add_again(t, "c", size=len(data)))


def narrow_file(t: SoundTable) -> None:
    data = parquet(kind=pa.int32())
    t.store.put("c", data)
    t.step(add_again(t, "c", size=len(data)))
