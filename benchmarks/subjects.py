"""The processes that are measured, ours and the peers': ``python -m benchmarks.subjects NAME ...``.

Each prints one JSON document. A subject imports what it needs inside its function, because the
imports of a process are part of what is measured and no subject may pay for another's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from delta_maintenance.address import Address
from delta_maintenance.operations.core.context import RunContext


def checkpoint_deltalake(table: str) -> dict[str, object]:
    from deltalake import DeltaTable

    opened = DeltaTable(table)
    opened.create_checkpoint()
    return {"version": opened.version()}


def checkpoint_counted(kind: str, table: str, ledger: str) -> dict[str, object]:
    """A checkpoint: `plain`, `counted`, or `recorded` in a ledger. All load the same modules."""
    from contextlib import ExitStack

    from delta_maintenance import clock, open_table
    from delta_maintenance.ledger.one_operation import outcome_of_document
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.operations.core.registry import find
    from delta_maintenance.policies.measuring import SparkTime, measure_block
    from delta_maintenance.policies.models import RunResult
    from delta_maintenance.storage import open_store

    started, record, opened = clock.now(), find("checkpoint"), open_table(table)
    with ExitStack() as counting:
        found = None
        if kind != "plain":
            found = counting.enter_context(measure_block(opened.store, SparkTime()))
        prepared = record.prepare(opened, record.options(), RunContext.at(started))
        assert prepared is not None
        result = prepared.apply()
    warnings: list[str] = []
    if kind == "recorded":
        assert found is not None
        ended = clock.now()
        outcome = outcome_of_document(
            record,
            result,
            planned=False,
            failure=None,
            started=started,
            seconds=(ended - started).total_seconds(),
            cost=found.cost,
        )
        done = RunResult(
            name=table,
            uri=table,
            status="done",
            started_at=started,
            ended_at=ended,
            outcomes=(outcome,),
        )
        recorder = Recorder(open_ledger=lambda: LedgerTable(open_store(ledger)), state=None)
        origin = Origin(done_by="cli", run_id=clock.new_id())
        warnings = [*recorder.record(done, origin)]
    return {
        "version": result.version,
        "files": result.num_files,
        "counted": None if found is None else found.cost.cpu_seconds,
        "warnings": warnings,
    }


def compact_ours(table: str, commits: str) -> dict[str, object]:
    from delta_maintenance import clock, open_table
    from delta_maintenance.operations import compact_log

    started = time.perf_counter()
    opened = open_table(table)
    snapshot = opened.snapshot()
    options = compact_log.CompactLogOptions(commits_per_file=int(commits))
    plan = compact_log.plan(snapshot, options, context=RunContext.at(clock.now()))
    compact_log.apply(opened, plan, snapshot=snapshot)
    return {"version": snapshot.version, "seconds": time.perf_counter() - started}


def compact_deltalake(table: str) -> dict[str, object]:
    from deltalake import DeltaTable

    started = time.perf_counter()
    opened = DeltaTable(table)
    opened.compact_logs(0, opened.version())
    return {"version": opened.version(), "seconds": time.perf_counter() - started}


def open_ours(table: str) -> dict[str, object]:
    from delta_maintenance import open_table
    from delta_maintenance.cli.process import own_the_process

    own_the_process()
    snapshot = open_table(table).snapshot()
    return {"version": snapshot.version, "files": snapshot.counts.num_files}


def open_deltalake(table: str) -> dict[str, object]:
    from deltalake import DeltaTable

    # It reads every file action here; its number of files is not asked for, which favours it.
    return {"version": DeltaTable(table).version()}


def files_ours(table: str) -> dict[str, object]:
    """As a process of the command line runs."""
    from delta_maintenance.cli.process import own_the_process

    own_the_process()
    import pyarrow.compute as pc

    from delta_maintenance import open_table

    snapshot = open_table(table).snapshot()
    files = snapshot.live_files()
    total = pc.sum(files["size"]).as_py()
    return {"version": snapshot.version, "files": files.num_rows, "bytes": total}


def start_ours() -> dict[str, object]:
    """The imports of a process that writes a checkpoint."""
    import pyarrow.parquet  # noqa: F401  measured

    import delta_maintenance.cli.main
    import delta_maintenance.operations.checkpoint.operation
    import delta_maintenance.table.write.checkpoint_writer  # noqa: F401  measured

    return {}


def inspect_ours(table: str) -> dict[str, object]:
    import pyarrow.compute  # noqa: F401  part of the start

    from delta_maintenance import open_table
    from delta_maintenance.operations.health.inspection import describe
    from delta_maintenance.table.read.summary import TableSummary, summarize

    started, cpu = time.perf_counter(), time.process_time()
    store = open_table(table).store
    found = summarize(store) or open_table(table).snapshot()
    files = describe(found)["num_files"]
    return {
        "files": files,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "by_checksum": isinstance(found, TableSummary),
    }


def second_look_ours(table: str, commits: str) -> dict[str, object]:
    """Opens and counts, then follows some commits of one file each, which it writes itself."""
    from pathlib import Path

    from delta_maintenance import open_table

    opened = open_table(table)
    times = [time.process_time()]
    snapshot = opened.snapshot()
    snapshot.remember_files()
    before = snapshot.counts.num_files
    times.append(time.process_time())
    for number in range(1, int(commits) + 1):
        add = {"path": f"later-{number}", "partitionValues": {}, "size": 1}
        add |= {"modificationTime": 1, "dataChange": True}
        path = Path(table) / "_delta_log" / f"{snapshot.version + number:020}.json"
        path.write_text(json.dumps({"add": add}) + "\n")
    times.append(time.process_time())
    after = opened.forward(snapshot).counts.num_files
    times.append(time.process_time())
    return {
        "files": before,
        "added": after - before,
        "first_cpu": times[1] - times[0],
        "second_cpu": times[3] - times[2],
    }


def files_deltalake(table: str) -> dict[str, object]:
    from deltalake import DeltaTable

    opened = DeltaTable(table)
    files = opened.get_add_actions(flatten=False)
    total = int(files["size_bytes"].to_numpy().sum())
    return {"version": opened.version(), "files": files.num_rows, "bytes": total}


def files_by_store(store: str, table: str) -> dict[str, object]:
    from delta_maintenance.storage.fsspec import FsspecStore
    from delta_maintenance.storage.local.store import LocalStore
    from delta_maintenance.table.read.table import Table

    started = time.perf_counter()
    opened = (
        FsspecStore(Address.parse(f"file://{table}")) if store == "fsspec" else LocalStore(table)
    )
    snapshot = Table(opened).snapshot()
    files = snapshot.live_files()
    seconds = time.perf_counter() - started
    return {"version": snapshot.version, "files": files.num_rows, "seconds": seconds}


def files_by_limits(kind: str, table: str) -> dict[str, object]:
    from delta_maintenance import open_table
    from delta_maintenance.table.read import actions_file

    if kind == "unlimited":
        for name, peer in (("open_footer", _footer), ("guarded_batches", _batches)):
            # Fails where the reader has moved, instead of measuring it against itself.
            getattr(actions_file, name)
            setattr(actions_file, name, peer)
    snapshot = open_table(table).snapshot()
    return {"version": snapshot.version, "files": snapshot.live_files().num_rows}


def _footer(source: Any, limits: object) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    return file.metadata, file.schema_arrow


def _batches(
    source: Any, metadata: Any, *, row_groups: list[int], columns: list[str], **_: object
) -> Iterator[Any]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit="us")
    yield from file.iter_batches(batch_size=1 << 17, row_groups=row_groups, columns=columns)


def vacuum_deltalake(table: str) -> dict[str, object]:
    from deltalake import DeltaTable

    return {"files": len(DeltaTable(table).vacuum(full=True, dry_run=True))}


def optimize_deltalake(table: str, target: str, codec: str) -> dict[str, object]:
    from deltalake import DeltaTable, WriterProperties

    # Otherwise the codec and the level of ours.
    level = 1 if codec == "ZSTD" else None
    properties = (
        None
        if codec == "as-shipped"
        else WriterProperties(compression=codec, compression_level=level)
    )
    found = DeltaTable(table).optimize.compact(
        target_size=int(target), writer_properties=properties
    )
    return {"files": found["numFilesRemoved"], "after": found["numFilesAdded"]}


def z_order_deltalake(table: str, target: str, *columns: str) -> dict[str, object]:
    from deltalake import DeltaTable, WriterProperties

    properties = WriterProperties(compression="ZSTD", compression_level=1)
    found = DeltaTable(table).optimize.z_order(
        list(columns), target_size=int(target), writer_properties=properties
    )
    return {"files": found["numFilesRemoved"], "after": found["numFilesAdded"]}


def boxes(table: str) -> dict[str, object]:
    from benchmarks.rewrite_figures import touched_by_boxes

    return dict(touched_by_boxes(Path(table)))


def import_ours() -> dict[str, object]:
    _import_airflow()
    airflow_only = set(sys.modules)
    started = time.perf_counter()
    import delta_maintenance_airflow.operators  # noqa: F401

    added_ms = (time.perf_counter() - started) * 1000
    heavy = {"pyarrow", "pyspark"} & (set(sys.modules) - airflow_only)
    return {"added_ms": added_ms, "heavy": sorted(heavy)}


def import_airflow() -> dict[str, object]:
    _import_airflow()
    return {}


def _import_airflow() -> None:
    """What any module of operators and sensors takes from Airflow."""
    from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator  # noqa: F401


_SUBJECTS: dict[str, Callable[..., dict[str, object]]] = {
    "checkpoint-deltalake": checkpoint_deltalake,
    "checkpoint-counted": checkpoint_counted,
    "compact-ours": compact_ours,
    "compact-deltalake": compact_deltalake,
    "open-ours": open_ours,
    "open-deltalake": open_deltalake,
    "files-ours": files_ours,
    "start-ours": start_ours,
    "inspect-ours": inspect_ours,
    "second-look-ours": second_look_ours,
    "files-deltalake": files_deltalake,
    "files-by-store": files_by_store,
    "files-by-limits": files_by_limits,
    "vacuum-deltalake": vacuum_deltalake,
    "optimize-deltalake": optimize_deltalake,
    "z-order-deltalake": z_order_deltalake,
    "boxes": boxes,
    "import-ours": import_ours,
    "import-airflow": import_airflow,
}

if __name__ == "__main__":
    print(json.dumps(_SUBJECTS[sys.argv[1]](*sys.argv[2:])))
