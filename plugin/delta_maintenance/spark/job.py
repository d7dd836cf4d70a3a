"""The Spark job: runs the operation of a specification and writes a report.

    spark-submit job.py --spec @spec.json --report report.json
    SPARK_REMOTE=sc://… python -m delta_maintenance.spark.job --spec @spec.json

The launcher configures the session: master, deploy mode, memory and Spark Connect come from
`spark-submit`, from the environment or from Spark's own configuration. Lines for the user start
with `delta-maintenance: `. A line that starts with `DELTA_MAINTENANCE_APPLICATION ` describes the
session as JSON. The last line on stdout is `DELTA_MAINTENANCE_REPORT `, followed by the report as
JSON. The exit status is that of the command line.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from delta_maintenance import clock, open_table
from delta_maintenance.address import Address
from delta_maintenance.catalogs.reference import with_access
from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    remember_name,
    table_text,
)
from delta_maintenance.ledger.one_operation import OneOperation, delivering_to, recording
from delta_maintenance.operations.core.context import RunContext, options_for
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance.operations.core.operation import load
from delta_maintenance.operations.core.registry import find
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.assess import NewestSnapshots
from delta_maintenance.redaction import redact
from delta_maintenance.spark.session import JobSession, TaskTime, is_connected, ship_library
from delta_maintenance.storage import open_store
from delta_maintenance.submission.job_report import (
    APPLICATION_LINE,
    OWN_LINE,
    REPORT_LINE,
    JobReport,
)
from delta_maintenance.submission.job_spec import JobSpec
from delta_maintenance.submission.spark_submit import require_spark


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one job and returns its exit status."""
    parsed = _parse(arguments)
    storage_options: Mapping[str, str] = {}
    try:
        spec = read_spec(parsed.spec)
        if parsed.discard_spec and parsed.spec.startswith("@"):
            Path(parsed.spec[1:]).unlink(missing_ok=True)
        storage_options = spec.storage_options
        report = _in_session(spec)
    except Exception as error:
        # An orchestrator only sees the report, so the report contains the error.
        report = JobReport.of_error(error)
        if not isinstance(error, DeltaMaintenanceError):
            print(redact("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
    text = json.dumps(report.to_json(), ensure_ascii=False)
    if parsed.report is not None:
        _write(parsed.report, text.encode(), storage_options)
    if report.error is not None:
        _say(report.error.message)
    print(f"{REPORT_LINE}{text}", flush=True)
    return report.exit_status


def read_spec(text: str) -> JobSpec:
    """Parses the specification from an argument: JSON, or `@` and the path of a JSON file."""
    try:
        value = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise InvalidRequestError(
            f"the specification {text[1:]} cannot be read ({error.strerror})",
            remedy="give the path of a file on the driver's machine",
        ) from None
    except ValueError as error:
        raise InvalidRequestError(
            f"the specification is not valid JSON ({error})", remedy="give JSON, or @ and a path"
        ) from None
    spec = JobSpec.from_json(value)
    # Refuse an invalid address before Spark starts, because the log of Spark shows its arguments.
    Address.parse(spec.table)
    return spec


def run(spec: JobSpec, spark: SparkSession) -> dict[str, Any]:
    """Runs the operation in a session and returns its Result, or its Plan, as JSON."""
    return report_of(spec, spark).result_or_raise()


def report_of(spec: JobSpec, spark: SparkSession) -> JobReport:
    """Runs the operation in a session, measures its tasks, and adds a row to the ledger of the
    specification. Raises the errors of the operation.
    """
    record, time = find(spec.operation), TaskTime(spark)
    at = Address.parse(spec.table)
    deliver = delivering_to(
        spec.ledger,
        state=spec.ledger_state,
        done_by="spark",
        options=partial(options_for, given=spec.storage_options, kind=at.kind),
        warn=_warn,
    )
    name = spec.catalog_name or str(at.absolute())
    with recording(record, deliver, name=lambda: name, plans=spec.plan_only) as row:
        try:
            require_spark(pyspark.__version__, origin="the package pyspark of the driver")
            if is_connected(spark):
                require_spark(spark.version, origin="the Spark Connect server")
            with LoggedProgress(_Output()) as progress:
                row.document = _run(spec, spark, progress, row)
        finally:
            row.worked_on_spark(time.seconds)
        return JobReport(
            status="done",
            result=row.document.to_json(),
            report_uri=spec.report_uri,
            task_seconds=time.seconds,
        )


def _run(spec: JobSpec, spark: SparkSession, progress: LoggedProgress, row: OneOperation) -> Any:
    """Returns the Result, or the Plan."""
    record = find(spec.operation)
    options = spec.read_options()
    access = record.access(options, plan_only=spec.plan_only)
    # Executors have working directories of their own.
    address = str(Address.parse(spec.table).absolute())
    if spec.catalog_name is not None:
        remember_name(address, spec.catalog_name)
    session = JobSession(
        spark=spark,
        table_uri=address,
        storage_options=with_access(spec.storage_options, access),
        new_id=clock.new_id,
        progress=progress,
    )
    table = open_table(address, spec.storage_options)
    row.measure(table.store)
    snapshots = NewestSnapshots(table)
    context = RunContext(
        engine=load(record.spark.engine)(session) if record.spark is not None else None,
        progress=progress,
        plan_only=spec.plan_only,
        version=spec.version,
        report=spec.report_uri,
        storage_options=partial(options_for, given=spec.storage_options),
        newest=snapshots.to_plan,
    )
    approved = None if spec.approved is None else ApprovedPlan.from_json(spec.approved)
    narrowed = options if approved is None else approved.narrow_options(record, options)
    prepared = record.prepare(table, narrowed, context)
    assert prepared is not None, "there is an engine"
    plan = prepared.plan
    if approved is not None:
        approved.require(plan, options, table_id=snapshots.table_id())
    _say(f"{table_text(plan.table)}, version {plan.version}: {plan.reason}")
    return plan if spec.plan_only else prepared.apply()


def _in_session(spec: JobSpec) -> JobReport:
    shared = SparkSession.getActiveSession() is not None
    spark = SparkSession.builder.appName(f"delta-maintenance {spec.operation}").getOrCreate()
    try:
        _announce(spark)
        if is_connected(spark) and not shared:
            _end_session_if_terminated()
            ship_library(spark)
        return report_of(spec, spark)
    finally:
        # The session of a notebook or of a job server outlives the job.
        if not shared:
            spark.stop()


def _end_session_if_terminated() -> None:
    """Makes SIGTERM end the session before the process.

    Otherwise the server would continue the work of a terminated client.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _announce(spark: SparkSession) -> None:
    """Prints the application ID and the address of the Spark UI of the running job."""
    if is_connected(spark):
        return
    context = spark.sparkContext
    print(
        APPLICATION_LINE + json.dumps({"id": context.applicationId, "url": context.uiWebUrl}),
        flush=True,
    )


def _write(address: str, data: bytes, storage_options: Mapping[str, str]) -> None:
    file = Address.parse(address)
    store = open_store(file.parent, options_for(address, storage_options))
    try:
        store.put(file.name, data)
    finally:
        store.close()


class _Output:
    """Standard output as a log."""

    def info(self, message: str, /, *arguments: object) -> None:
        _say(message % arguments)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        _say(f"warning: {warning}")


def _say(line: str) -> None:
    print(f"{OWN_LINE}{redact(line)}", flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    parsed, unknown_words = parser.parse_known_args(arguments)
    # Glue adds its own arguments, and those by which it was told of the code.
    if unknown_words and "--JOB_RUN_ID" not in unknown_words:
        parser.error(f"unrecognized arguments: {' '.join(unknown_words)}")
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="job.py",
        description="Runs one operation on one Delta table as a PySpark job.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--spec",
        required=True,
        metavar="JSON|@FILE",
        help='what to do: {"operation": "checkpoint", "table": URI, "version": N or null, '
        '"storage_options": {...}, "options": {...}, "approved": {...} or null}; if it contains '
        "credentials, always as a file",
    )
    parser.add_argument(
        "--discard-spec",
        action="store_true",
        help="delete the file of the specification after reading it; for one with credentials",
    )
    parser.add_argument(
        "--report",
        metavar="PATH|URI",
        help='where to write the report: {"status": "done", "result": {...}}, or "failed" or '
        '"refused" and an "error"; a path on the driver\'s machine or an address in the table\'s '
        "store",
    )
    return parser


if __name__ == "__main__":
    status = main()
    # Some platforms treat every call of `sys.exit` as a failure.
    if status:
        sys.exit(status)
