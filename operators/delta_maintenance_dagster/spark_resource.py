"""The resource for Spark, which runs an operation as a Spark job."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

import atexit
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.rules import SparkRule
    from delta_maintenance.submission.job_report import DriverLine, JobReport
    from delta_maintenance.submission.job_spec import JobSpec
    from delta_maintenance.submission.spark_submit import DriverProcess

_GRACE_SECONDS = 15
_PIPES_APPLICATION = Path(__file__).resolve().parent / "pipes_job.py"


class DeltaSparkResource(dg.ConfigurableResource[Any]):
    """Submission of large work to Spark.

    Without settings, `spark-submit` and its own configuration decide; on a machine without such a
    configuration, that is Spark on this machine. A terminated run ends its application.

    .. code-block:: python

        DeltaSparkResource(master="spark://spark:7077", conf={"spark.executor.memory": "4g"})
    """

    master: str | None = Field(
        default=None,
        description=(
            "Such as `spark://HOST:7077`, `yarn`, `k8s://https://HOST`, `local[*]`, or `sc://HOST` "
            "for a server of Spark Connect. The policy of a table takes precedence."
        ),
    )
    deploy_mode: str = Field(
        default="client",
        description=(
            "`client` runs the driver beside the run, `cluster` on the cluster (YARN and "
            "Kubernetes). There it needs an identity of its own: credentials are not sent."
        ),
    )
    remote: str | None = Field(
        default=None,
        repr=False,
        description="The address of a Spark Connect server with its token, as `EnvVar`.",
    )
    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark properties of every job; none of them secret."
    )
    spark_home: str | None = Field(
        default=None, description="By default SPARK_HOME, or else the installed pyspark."
    )
    py_files: list[str] = Field(
        default_factory=list,
        description="Addresses of ZIP files for the Python path of driver and executors.",
    )
    archives: list[str] = Field(
        default_factory=list,
        description="Addresses of packed environments, each with `#` and its folder.",
    )
    application: str | None = Field(
        default=None,
        description="The address of `delta_maintenance/spark/job.py`, for drivers on a cluster.",
    )
    report_folder: str | None = Field(
        default=None,
        description=(
            "The address of a folder in which jobs write their reports, each under a new name. "
            "Required for drivers on a cluster."
        ),
    )
    pipes: bool = Field(
        default=False,
        description=(
            "Whether the job reports its progress through Dagster Pipes, which requires "
            "`dagster-pipes` for the driver. Its final report is the same."
        ),
    )

    def run_job(
        self,
        spec: "JobSpec",
        *,
        rule: "SparkRule",
        context: dg.AssetExecutionContext | dg.OpExecutionContext,
        drivers: "SparkDrivers",
    ) -> dict[str, Any]:
        """Runs a job to its end and returns the JSON of its Result, or of its Plan.

        `rule` is the Spark part of the policy, and `drivers` are those of the step. Raises the
        error that the job reports, and `DeltaMaintenanceError` if it ends without a report.
        """
        from delta_maintenance.submission.spark_submit import DriverProcess

        submission = _Submission.of(self, rule)
        with (
            tempfile.TemporaryDirectory(prefix="delta-maintenance-") as scratch,
            self._open_pipes(context) as pipes_environment,
        ):
            report, read_report = self._report(Path(scratch), spec, submission)
            spec_word = submission.spec_word(spec, Path(scratch))
            process = DriverProcess(
                command=submission.command(spec_word, report),
                environment={**submission.environment(), **pipes_environment},
                hear=partial(_log_line, context, own_lines=not self.pipes),
                grace_seconds=_GRACE_SECONDS,
                on_cluster=submission.on_cluster,
                master=submission.master,
            )
            status = drivers.run(process)
            try:
                return read_report().timed_result_or_raise()
            except FileNotFoundError:
                raise DeltaMaintenanceError(
                    f"the Spark job ended with status {status} and without a report: "
                    f"{process.last_line}",
                    table=spec.table,
                    remedy="check the output of the step; it is safe to run again",
                ) from None

    def _report(
        self, scratch: Path, spec: "JobSpec", submission: "_Submission"
    ) -> tuple[str, Callable[[], "JobReport"]]:
        from delta_maintenance.submission.job_report import JobReport, read_report

        if self.report_folder is None:
            if submission.on_cluster:
                raise InvalidRequestError(
                    "a driver on the cluster cannot write its report on this machine",
                    remedy="give the Spark resource a report_folder",
                )
            file = scratch / "report.json"
            return os.fspath(file), lambda: read_report(file)

        from delta_maintenance.address import Address
        from delta_maintenance.storage import open_store

        folder = Address.parse(self.report_folder)
        # Each try has a new name, so that the report of an earlier try is not used.
        name = f"{clock.new_id()}.json"
        store = open_store(folder, None if folder.is_local else spec.storage_options)
        return str(folder.join(name)), lambda: JobReport.from_json(json.loads(store.read(name)))

    @contextmanager
    def _open_pipes(
        self, context: dg.AssetExecutionContext | dg.OpExecutionContext
    ) -> Iterator[Mapping[str, str]]:
        """Yields the environment variables through which the driver reaches this run."""
        if not self.pipes:
            yield {}
            return
        if self.deploy_mode == "cluster":
            raise InvalidRequestError(
                "Pipes use files of this machine, which a driver on a cluster cannot reach",
                remedy="omit pipes: the report does not need them",
            )
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            yield session.get_bootstrap_env_vars()


class SparkDrivers:
    """The drivers of the jobs of a step: one at a time, because each takes its memory."""

    def __init__(self) -> None:
        self._one_at_a_time = Lock()
        self._process: DriverProcess | None = None
        self._is_ended = False

    def run(self, process: "DriverProcess") -> int:
        """Runs a driver to its end and returns its exit status."""
        with self._one_at_a_time:
            if self._is_ended:
                raise CancelledError
            self._process = process
            # An interrupt may be raised in the code of Dagster, which does not tell this one.
            atexit.register(self.end)
            try:
                return process.run()
            finally:
                atexit.unregister(self.end)

    def end(self) -> None:
        """Ends a driver that is still running, and lets no other begin."""
        self._is_ended = True
        if self._process is not None:
            self._process.end()


@dataclass(frozen=True, kw_only=True)
class _Submission:
    """The resource, overridden by the policy's rule."""

    resource: DeltaSparkResource
    master: str | None
    remote: str | None
    conf: Mapping[str, str]
    application: str

    @classmethod
    def of(cls, resource: DeltaSparkResource, rule: "SparkRule") -> "_Submission":
        from delta_maintenance.operations.core.policy_values import resolve
        from delta_maintenance.submission.configuration import require_no_secrets
        from delta_maintenance.submission.job_spec import APPLICATION

        # Properties in a policy were checked when it was read; these come from Python code.
        policy_conf = {name: resolve(value, os.environ) for name, value in rule.conf.items()}
        conf = {**resource.conf, **policy_conf}
        require_no_secrets(conf)
        master = rule.master or resource.master
        remote = resource.remote
        if master is not None and master.startswith("sc://"):
            master, remote = None, remote or master
        elif rule.master is not None:
            remote = None
        if resource.deploy_mode not in ("client", "cluster"):
            raise InvalidRequestError(
                f"{resource.deploy_mode!r} is not a deploy mode", remedy="give client or cluster"
            )
        if remote is not None and conf:
            raise InvalidRequestError(
                "Spark properties cannot be sent to a Spark Connect server",
                remedy="omit conf, or set the properties when the server is started",
            )
        standard = _PIPES_APPLICATION if resource.pipes else APPLICATION
        return cls(
            resource=resource,
            master=master,
            remote=remote,
            conf=conf,
            application=resource.application or os.fspath(standard),
        )

    @property
    def on_cluster(self) -> bool:
        return self.remote is None and self.resource.deploy_mode == "cluster"

    def spec_word(self, spec: "JobSpec", scratch: Path) -> str:
        """Returns the specification as an argument, which never contains credentials."""
        if not self.on_cluster:
            return spec.write(scratch / "spec.json")
        from dataclasses import replace

        from delta_maintenance.storage.options import parse_options
        from delta_maintenance.submission.job_spec import require_no_credentials

        options = parse_options(spec.table, spec.storage_options)
        if options is not None:
            spec = replace(spec, storage_options=options.public())
        require_no_credentials(spec)
        return json.dumps(spec.to_json())

    def command(self, spec_word: str, report: str) -> list[str]:
        from delta_maintenance.submission.spark_submit import (
            connect_command,
            find_spark_home,
            submit_command,
        )

        if self.remote is not None:
            return connect_command(spec_word, report, application=self.application)
        home = Path(self.resource.spark_home) if self.resource.spark_home else find_spark_home()
        mode = {"spark.submit.deployMode": "cluster"} if self.on_cluster else {}
        return submit_command(
            spec_word,
            report,
            spark_submit=os.fspath(home / "bin" / "spark-submit"),
            master=self.master,
            conf={**self.conf, **mode},
            py_files=self.resource.py_files,
            archives=self.resource.archives,
            application=self.application,
        )

    def environment(self) -> dict[str, str]:
        from delta_maintenance.submission.spark_submit import driver_environment

        return driver_environment(os.environ, remote=self.remote)


def _log_line(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    line: "DriverLine",
    *,
    own_lines: bool,
) -> None:
    """Sorts the lines of a job: its own go to the log of the run, those of Spark to the output."""
    if line.message is not None:
        if own_lines:
            context.log.info(line.message)
    elif line.application is not None:
        where = f": {line.interface}" if line.interface else ""
        context.log.info(f"Spark application {line.application}{where}")
    elif not line.is_report:
        print(line.text, file=sys.stderr, flush=True)
