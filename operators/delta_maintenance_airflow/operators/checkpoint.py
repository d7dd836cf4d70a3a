"""Writes the checkpoint of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator

from delta_maintenance import clock
from delta_maintenance_airflow.failures import retrying_only_what_may_pass
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.spark_submission import SparkSubmission

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.checkpoint import CheckpointOptions

_XCOM_NOTES = 10
"""XCom is for small values; the log has all notes."""
_PROGRESS_EVERY = timedelta(seconds=10)


class DeltaCheckpointOperator(BaseOperator):
    """Writes a checkpoint of a table's newest version, so that readers need not replay its log.

    A checkpoint adds no version and deletes nothing. It is read back and compared before any
    reader can see it, so a task that fails or is killed leaves the table as it was, and running it
    twice does no harm. Where the version has a sound checkpoint already, the task says so and
    succeeds.

    What it returns (and pushes to XCom) is the result as a small flat JSON object: `operation`,
    `status` (`written`, `already-there` or `nothing-to-do`; `planned` with `plan_only`), `table`,
    `version`, `kind`, `engine`, `path`, `sidecars`, `bytes_written`, ... The event of every asset
    in `outlets` carries `delta_version`, `operation` and `status`.

    Errors that may pass (the store is down, another writer won) are retried as the task says; all
    others fail it at once.

    :param table_uri: the address of the table: a path, `file:` or `s3:`. (templated)
    :param options: what to write, as fields of `CheckpointOptions`: `kind` (`auto`, `classic`,
        `v2-classic`, `v2-json`, `v2-parquet`), `actions_per_sidecar`, `time_zone`,
        `auto_spark_bytes`. Empty values stand for the defaults. (templated)
    :param engine: `local` works in the worker; `spark` submits a PySpark job, which plans and works
        on its own; `auto` opens the table in the worker and submits a job for large logs only.
        (templated)
    :param plan_only: only say what would be written, and why. Always in the worker. (templated)
    :param delta_conn_id: the connection with the storage options of the table; None where the
        worker's environment has all it takes. See `DeltaHook`. (templated)
    :param spark_conn_id: the connection to submit to; of the Apache Spark provider, which comes
        with the extra `airflow-spark`. (templated)
    :param spark_conf: Spark properties of the job. (templated)
    :param report_folder: the address of a folder in which the job leaves its report, under a new
        name each time; the worker reads it with the storage options of the table. Needed where the
        driver runs on the cluster (deploy mode `cluster`), which also needs an identity of its own:
        credentials of `delta_conn_id` stay in the worker. Otherwise a temporary file of the worker
        does. (templated)
    """

    template_fields: Sequence[str] = (
        "table_uri",
        "options",
        "engine",
        "plan_only",
        "delta_conn_id",
        "spark_conn_id",
        "spark_conf",
        "report_folder",
    )
    template_fields_renderers = {"options": "json", "spark_conf": "json"}
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        table_uri: str,
        options: Mapping[str, Any] | None = None,
        engine: str = "auto",
        plan_only: bool | str = False,
        delta_conn_id: str | None = None,
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, Any] | None = None,
        report_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if options is not None and "engine" in options:
            raise ValueError("give the engine as the argument `engine`, not among the options")
        self.table_uri = table_uri
        self.options = options
        self.engine = engine
        self.plan_only = plan_only
        self.delta_conn_id = delta_conn_id
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.report_folder = report_folder
        self._submission: SparkSubmission | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        with retrying_only_what_may_pass():
            outcome = self._run()
        for note in outcome.get("notes", ()):
            self.log.info("note: %s", note)
        outcome["notes"] = outcome.get("notes", [])[:_XCOM_NOTES]
        if not _as_flag(self.plan_only):
            self._tell_outlets(context, outcome)
        return outcome

    def on_kill(self) -> None:
        if self._submission is not None:
            self._submission.kill()

    def _run(self) -> dict[str, Any]:
        # Loads pyarrow and pydantic, which the parsing of DAGs must not wait for.
        from delta_maintenance.operations import checkpoint

        given = {**(self.options or {}), "engine": self.engine}
        options = checkpoint.CheckpointOptions.from_json(
            {name: value for name, value in given.items() if value not in (None, "")}
        )
        plan_only = _as_flag(self.plan_only)
        if options.engine == "spark" and not plan_only:
            # Not opened here: a log that asks for Spark may be more than the worker can hold.
            return self._submit(options, version=None)
        table = DeltaHook(self.delta_conn_id).open_table(self.table_uri)
        snapshot = table.snapshot()
        plan = checkpoint.plan(snapshot, options, now=clock.now())
        self.log.info("%s, version %d: %s", plan.table, plan.version, plan.reason)
        if plan_only:
            return {"operation": "checkpoint", "status": "planned", **plan.to_json()}
        if plan.engine == "spark" and not plan.is_noop:
            return self._submit(options, version=plan.version)
        result = checkpoint.apply(
            table,
            plan,
            snapshot=snapshot,
            new_id=clock.new_id,
            progress=_LoggedProgress(self.log),
        )
        return self._told(result.to_json())

    def _submit(self, options: CheckpointOptions, *, version: int | None) -> dict[str, Any]:
        self._submission = SparkSubmission(
            spark_conn_id=self.spark_conn_id,
            spark_conf=self.spark_conf,
            delta_hook=DeltaHook(self.delta_conn_id),
            report_folder=self.report_folder,
        )
        given = {**options.to_json(), "engine": "spark"}
        return self._told(
            self._submission.run("checkpoint", self.table_uri, given, version=version)
        )

    def _told(self, result: dict[str, Any]) -> dict[str, Any]:
        if result["status"] == "nothing-to-do":
            self.log.info("nothing to do for %s, version %d", result["table"], result["version"])
        else:
            self.log.info(
                "%s: %s %s of version %d with %d sidecars: %d actions, %d bytes",
                result["table"],
                result["status"],
                result["path"],
                result["version"],
                result["sidecars"],
                result["actions"],
                result["bytes_written"],
            )
        return {"operation": "checkpoint", **result}

    def _tell_outlets(self, context: Context, outcome: Mapping[str, Any]) -> None:
        extra = {
            "delta_version": outcome["version"],
            "operation": outcome["operation"],
            "status": outcome["status"],
        }
        for outlet in self.outlets:
            if isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(Asset(uri=self.table_uri), extra=extra)
            elif isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = extra


class _LoggedProgress:
    """A line per stage, and one every few seconds within it."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._stage: str | None = None
        self._last: datetime | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = clock.now()
        if stage == self._stage and self._last is not None and now - self._last < _PROGRESS_EVERY:
            return
        self._stage, self._last = stage, now
        self._log.info("%s: %d%s", stage, done, "" if total is None else f" of {total}")


def _as_flag(value: bool | str) -> bool:
    # A template that is not rendered natively gives text.
    return value.strip().lower() in ("true", "1") if isinstance(value, str) else value
