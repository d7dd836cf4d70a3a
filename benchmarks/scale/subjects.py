"""One step on one table as a process: ``python -m benchmarks.scale.subjects ENGINE STEP TABLE``.

Prints one JSON document: the result of the step, and what it read, wrote and asked for. Each step
imports what it needs inside its function, because imports are part of what is measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from delta_maintenance.operations.core.context import RunContext

Step = Callable[[str], dict[str, Any]]


def ours(step: str, table: str) -> dict[str, Any]:
    from delta_maintenance.cli.process import own_the_process

    own_the_process()
    from benchmarks.scale.counted_store import CountedStore
    from delta_maintenance import clock
    from delta_maintenance.table.read.table import Table

    store = CountedStore(table)
    opened = Table(store)

    def count() -> int:
        return opened.snapshot().counts.num_files

    def list_files() -> int:
        return sum(batch.num_rows for batch in opened.snapshot().live_file_batches())

    def checkpoint(incremental: Any) -> int:
        from delta_maintenance.operations import checkpoint as operation

        options = operation.CheckpointOptions(kind="v2-json", incremental=incremental)
        snapshot = opened.snapshot()
        plan = operation.plan(snapshot, options, context=RunContext.at(clock.now()))
        result = operation.apply(opened, plan, snapshot=snapshot)
        assert result.incremental == (incremental == "always"), result
        return result.num_files

    def clean_log() -> int:
        from delta_maintenance.operations import clean_log as operation

        plan = operation.plan(opened.snapshot(), context=RunContext.at(clock.now()))
        result = operation.apply(opened, plan, context=RunContext.at(clock.now()))
        return sum(group.deleted for group in result.groups)

    def vacuum() -> int:
        from delta_maintenance.operations import vacuum as operation

        options = operation.VacuumOptions(mode="lite")
        return operation.plan(opened.snapshot(), options, context=RunContext.at(clock.now())).files

    steps: Mapping[str, Callable[[], int]] = {
        "open": count,
        "list": list_files,
        "checkpoint-full": lambda: checkpoint("never"),
        "checkpoint-incremental": lambda: checkpoint("always"),
        "clean-log": clean_log,
        "vacuum-lite": vacuum,
    }
    result = steps[step]()
    return {"result": result, "requests": store.requests}


def deltalake(step: str, table: str) -> dict[str, Any]:
    from deltalake import DeltaTable

    opened = DeltaTable(table)
    steps: Mapping[str, Callable[[], Any]] = {
        "open": lambda: None,
        "list": lambda: opened.get_add_actions(flatten=False).num_rows,
        "checkpoint-full": opened.create_checkpoint,
        "clean-log": opened.cleanup_metadata,
        "vacuum-lite": lambda: len(opened.vacuum(dry_run=True)),
    }
    result = steps[step]()
    return {"result": result}


def delta_spark(step: str, table: str) -> dict[str, Any]:
    from benchmarks.scale.delta_spark import run

    return run(step, table)


def moved() -> dict[str, int]:
    """The bytes that this process and its ended children read and wrote, in any way but mapping."""
    lines = Path("/proc/self/io").read_text().splitlines()
    told = dict(line.split(": ") for line in lines)
    return {"bytes_read": int(told["rchar"]), "bytes_written": int(told["wchar"])}


def main(engine: str, step: str, table: str) -> dict[str, Any]:
    """Runs the step; returns what it cost beyond the start of the interpreter."""
    before, started, cpu = moved(), time.perf_counter(), time.process_time()
    engines: Mapping[str, Callable[[str, str], dict[str, Any]]] = {
        "ours": ours,
        "deltalake": deltalake,
        "delta-spark": delta_spark,
    }
    report = engines[engine](step, table)
    found = {name: number - before[name] for name, number in moved().items()}
    return {
        "step_seconds": time.perf_counter() - started,
        "step_cpu": time.process_time() - cpu,
        **found,
        **report,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
