"""`spark-spec` prints the request for a platform, `spark-stage` writes the files for it."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.cli.verbs import spark_spec
from delta_maintenance.submission import APPLICATION, JobSpec
from delta_maintenance.submission.exporters import EXPORTERS
from delta_maintenance.submission.log_store import JAR

WORDS = (
    *("spark-spec", "vacuum", "s3://lake/events"),
    *("--application", "s3://lake/job.py", "--report", "s3://lake/report.json"),
)


def test_the_choices_of_the_command_line_are_those_of_the_library() -> None:
    # Written down twice, so that `--help` loads nothing heavy.
    assert tuple(EXPORTERS) == spark_spec._PLATFORMS
    page = Path(__file__).parents[3] / "docs" / "reference" / "cli" / "spark-spec.md"
    rows = re.findall(r"(?m)^\| `([a-z][a-z-]+)` \|.*\| ([^|]*) \|$", page.read_text())
    told = {platform: set(re.findall(r"`(\w+)`", names)) for platform, names in rows}
    assert told == {name: set(kind.__dataclass_fields__) for name, kind in EXPORTERS.items()}


def test_a_request_is_printed(cli: Any) -> None:
    outcome = cli(
        *WORDS,
        *("--for", "livy", "--set", "queue=etl", "--options", '{"retention": "P30D"}'),
        *("--py-files", "s3://lake/l.zip", "--archives", "s3://lake/e.tar.gz#e", "--plan-only"),
        *("--ledger", "s3://lake/ledger", "--ledger-state", "s3://lake/state"),
        *("--executors", "3", "--executor-memory", "2g", "--spark-conf", "spark.task.cpus=2"),
        *("--env", "TMPDIR=/scratch", "--python", "./e/bin/python"),
    )
    assert (outcome.status, outcome.err) == (0, "")
    body = outcome.document
    assert (body["queue"], body["pyFiles"]) == ("etl", ["s3://lake/l.zip"])
    assert body["archives"] == ["s3://lake/e.tar.gz#e"]
    assert (
        body["conf"].items()
        >= {
            "spark.executor.instances": "3",
            "spark.executor.memory": "2g",
            "spark.task.cpus": "2",
            "spark.executorEnv.TMPDIR": "/scratch",
            "spark.pyspark.python": "./e/bin/python",
        }.items()
    )
    spec = JobSpec.from_json(json.loads(body["args"][1]))
    assert (spec.operation, spec.plan_only, spec.options) == ("vacuum", True, {"retention": "P30D"})
    assert (spec.ledger, spec.ledger_state) == ("s3://lake/ledger", "s3://lake/state")


def test_the_resource_of_kubernetes_is_yaml_unless_json_is_requested(cli: Any) -> None:
    words = (*WORDS, "--for", "kubernetes", "--image", "x/y:1", "--set", "namespace=lake")
    words = (*words, "--set", "spark_version=4.0.1", "--set", "service_account=spark")
    printed = cli(*words).out
    assert printed.startswith("apiVersion: ")
    assert yaml.safe_load(printed) == cli(*words, "--json").document


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--for", "livy", "--set", "que=etl"), "que: LivyBatch has no such field"),
        (("--for", "livy", "--set", "que=etl"), "the fields are name, proxy_user, queue"),
        (("--for", "dataproc-cluster"), "project_id"),
        (("--for", "glue", "--set", "job=j"), "job: GlueJobRun has no such field; the fields are"),
        (("--for", "livy", "--spark-conf", "spark.jars=x.jar"), "spark.jars"),
        (("--for", "livy", "--options", '{"retain": 1}'), "retain"),
        (("--for", "livy", "--options", "[]"), "--options: no JSON object"),
        (("--for", "livy", "--executors", "none"), "executors"),
        (("--for", "livy", "--ledger", "/ledger"), "the ledger /ledger is a path on this machine"),
        (("--for", "livy", "--ledger", "s3://me:hush@lake/ledger"), "plain address"),
        (
            ("--for", "livy", "--storage-option", "key=id", "--storage-option", "secret=hush"),
            "identity",
        ),
        (("--for", "slurm"), "--for"),
    ],
)
def test_impossible_requests_are_usage_errors(
    cli: Any, words: tuple[str, ...], problem: str
) -> None:
    outcome = cli(*WORDS, *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert problem in outcome.err and "hush" not in outcome.err


def test_both_files_of_a_job_are_put_into_a_folder(cli: Any, tmp_path: Path) -> None:
    told = cli("spark-stage", f"{tmp_path}/", "--json").document
    assert Path(told["application"]).read_bytes() == APPLICATION.read_bytes()
    [library] = told["py_files"]
    assert "delta_maintenance/spark/job.py" in zipfile.ZipFile(library).namelist()
    again = cli("spark-stage", str(tmp_path))
    assert again.out.splitlines() == [told["application"], library]


def test_the_log_store_is_written_with_its_settings(cli: Any, tmp_path: Path) -> None:
    settings = cli("spark-stage", f"{tmp_path}/", "--log-store", "--json").document
    assert Path(settings["spark.jars"]).read_bytes() == JAR.read_bytes()
    name = settings["spark.delta.logStore.s3a.impl"]
    assert f"{name.replace('.', '/')}.class" in zipfile.ZipFile(JAR).namelist()
    lines = cli("spark-stage", str(tmp_path), "--log-store").out.splitlines()
    assert [line.split(" ") for line in lines] == [list(item) for item in settings.items()]
