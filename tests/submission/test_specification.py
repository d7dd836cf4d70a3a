"""Allowed contents of a Spark submission, and what is refused before anything is sent."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import spark_operations
from delta_maintenance.submission import JobSpec
from delta_maintenance.submission.configuration import (
    checked_conf,
    checked_environment,
    require_no_secrets,
)
from delta_maintenance.submission.job_report import DriverLine
from delta_maintenance.submission.spark_submit import driver_environment, library_zip
from delta_maintenance.submission.specification import Code, Resources, Submission

SPEC = JobSpec(operation="checkpoint", table="s3://lake/events")
CODE = Code(application="s3://lake/job.py")
WHERE: dict[str, Any] = {"code": CODE, "report": "s3://lake/report.json"}


@pytest.mark.parametrize(
    "name",
    [
        "spark.executor.memory",
        "spark.executor.pyspark.memory",
        "spark.dynamicAllocation.maxExecutors",
        "spark.speculation",
        "spark.speculation.quantile",
        "spark.sql.shuffle.partitions",
        "spark.kubernetes.namespace",
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY",
        "spark.yarn.queue",
        "spark.hadoop.fs.s3a.endpoint",
    ],
)
def test_allowed_spark_properties(name: str) -> None:
    assert checked_conf({name: True}) == {name: "true"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "is a secret"),
        ("spark.hadoop.fs.s3a.access.key", "is a secret"),
        ("spark.hadoop.fs.s3a.session.token", "is a secret"),
        ("spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "is a secret"),
        ("spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net", "is a secret"),
        ("spark.ssl.keyStorePassword", "is a secret"),
        ("spark.hadoop.fs.gs.auth.service.account.private.key.id", "is a secret"),
        ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "is a secret"),
        ("spark.authenticate.secret", "is a secret"),
        ("spark.driver.extraJavaOptions", "load code"),
        ("spark.executor.extraClassPath", "load code"),
        ("spark.jars", "load code"),
        ("spark.jars.packages", "load code"),
        ("spark.plugins", "load code"),
        ("spark.extraListeners", "load code"),
        ("spark.kubernetes.driver.podTemplateFile", "load code"),
        ("spark.yarn.am.extraJavaOptions", "load code"),
        ("spark.yarn.dist.files", "load code"),
        ("spark.sql.catalog.lake", "load code"),
        ("spark.submit.pyFiles", "must not be set here; name them as py_files"),
        ("spark.pyspark.python", "must not be set here; name it as python"),
        ("spark.kubernetes.container.image", "must not be set here; name it as image"),
        ("spark.master", "must not be set here"),
        ("spark.app.name", "must not be set here"),
        ("spark.executorEnv.TMPDIR", "name it in the environment"),
        ("spark.something.new", "not among those"),
        ("spark.executor.memoryhog", "not among those"),
        ("javax.net.debug", "not among those"),
    ],
)
def test_forbidden_spark_properties(name: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as caught:
        checked_conf({"spark.executor.cores": 1, name: "the-value"})
    assert name in str(caught.value) and "the-value" not in str(caught.value)


def test_the_local_command_line_refuses_only_secrets() -> None:
    require_no_secrets({"spark.jars": "x.jar", "spark.kubernetes.driver.secrets.lake": "/etc/lake"})
    with pytest.raises(InvalidRequestError, match=r"spark\.hadoop\.fs\.s3a\.secret\.key"):
        require_no_secrets({"spark.hadoop.fs.s3a.secret.key": "hush"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AZURE_STORAGE_SAS_TOKEN", "secret"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "secret"),
        ("LD_PRELOAD", "other code"),
        ("PYTHONPATH", "other code"),
        ("PYSPARK_PYTHON", "other code"),
        ("A=B", "not a name"),
    ],
)
def test_secrets_and_code_in_the_environment_are_refused(name: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        checked_environment({"TMPDIR": "/scratch", name: "x"})


@pytest.mark.parametrize(
    ("spec", "where", "problem"),
    [
        ({"table": "/lake/events"}, {}, "table /lake/events is a path"),
        ({"table": "file:///lake/events"}, {}, "path on this machine"),
        ({}, {"report": "report.json"}, "report report.json is a path"),
        ({}, {"code": Code(application="/opt/job.py")}, "application /opt/job.py is a path"),
        ({"options": {"kinds": "x"}}, {}, "kinds"),
        (
            {"storage_options": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hush"}},
            {},
            "other users could read",
        ),
        ({"storage_options": {"key": "id", "secret": "hush"}}, {}, "other users could read"),
        (
            {
                "table": "gs://lake/events",
                "storage_options": {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"k": "hush"}'},
            },
            {},
            "other users could read",
        ),
    ],
)
def test_unreachable_and_secret_inputs_are_refused(
    spec: dict[str, Any], where: dict[str, Any], problem: str
) -> None:
    asked = JobSpec.from_json({**SPEC.to_json(), **spec})
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        Submission.of(asked, **{**WHERE, **where})
    assert "hush" not in str(caught.value)


def test_storage_options_without_secrets_are_passed_on() -> None:
    spec = JobSpec.from_json(
        {**SPEC.to_json(), "storage_options": {"AWS_ENDPOINT_URL": "http://s3:9000"}}
    )
    parsed = JobSpec.from_json(json.loads(Submission.of(spec, **WHERE).arguments[1]))
    assert parsed == spec


@pytest.mark.parametrize("operation", [*(each.name for each in spark_operations()), "clean-log"])
def test_the_options_of_every_operation_are_checked(operation: str) -> None:
    JobSpec.from_json({**SPEC.to_json(), "operation": "fsck"}).read_options()
    wrong = {**SPEC.to_json(), "operation": operation, "options": {"no_such_option": 1}}
    with pytest.raises(InvalidRequestError):
        JobSpec.from_json(wrong).read_options()


def test_sizes_python_and_environment_become_spark_properties() -> None:
    given = Submission.of(
        SPEC,
        report="s3://lake/report.json",
        code=replace(CODE, python="./env/bin/python"),
        conf={"spark.task.maxFailures": 8},
        environment={"TMPDIR": "/scratch"},
        resources=Resources(executors=3, executor_memory_overhead="3g"),
    )
    assert given.properties(driver_environment="spark.yarn.appMasterEnv.") == {
        "spark.task.maxFailures": "8",
        "spark.executor.instances": "3",
        "spark.executor.memoryOverhead": "3g",
        "spark.pyspark.python": "./env/bin/python",
        "spark.executorEnv.TMPDIR": "/scratch",
        "spark.yarn.appMasterEnv.TMPDIR": "/scratch",
    }
    assert Submission.from_json(json.loads(json.dumps(given.to_json()))) == given
    with pytest.raises(InvalidRequestError, match="executor_memory"):
        Resources.from_json({"executor_memory": "lots"})


@pytest.mark.process
def test_the_packaged_library_runs_without_installation(tmp_path: Path) -> None:
    packed = library_zip()
    assert packed == library_zip()
    file = tmp_path / "library.zip"
    file.write_bytes(packed)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert all(name.startswith("delta_maintenance/") for name in archive.namelist())
    code = (
        "import delta_maintenance, delta_maintenance.spark.vacuum_tasks as tasks; "
        f"assert tasks.__file__.startswith({str(file)!r}), tasks.__file__"
    )
    site = [path for path in sys.path if path.endswith("site-packages")]
    # -S: without site-packages, so that the editable installation is not found.
    run = [sys.executable, "-S", "-W", "ignore", "-c", code]
    path = ":".join([str(file), *site])
    done = subprocess.run(run, env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_submitted_driver_ignores_spark_connect_settings() -> None:
    before = {"SPARK_REMOTE": "sc://old", "PYSPARK_PYTHON": "/opt/python", "KEY": "old"}
    assert "SPARK_REMOTE" not in driver_environment(before)
    environment = driver_environment(before, remote="sc://new", secrets={"KEY": None, "TOKEN": "t"})
    assert (environment["SPARK_REMOTE"], environment["TOKEN"], "KEY" in environment) == (
        "sc://new",
        "t",
        False,
    )
    assert environment["PYSPARK_PYTHON"] == "/opt/python"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize("line", ["DELTA_MAINTENANCE_APPLICATION {", "x", "[]", '{"url": null}'])
def test_an_application_without_ui_has_no_address(line: str) -> None:
    assert DriverLine.read(line).interface is None
