"""Requests of each platform for one submission: golden documents, and what platforms refuse.

`test_vendor_models` compares the same documents with what the vendors publish.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.submission import JobSpec
from delta_maintenance.submission.exporters import EXPORTERS, DatabricksRun, Exporter, FabricBatch
from delta_maintenance.submission.specification import Resources, Submission
from tests.support.submissions import (
    ARCHIVE,
    DATABRICKS,
    DOCUMENTS,
    EMR,
    EXECUTORS,
    FABRIC,
    GLUE,
    GLUE_JOB,
    IMAGE,
    JOB,
    KUBERNETES,
    LIVY,
    PACKED,
    SPEC,
    SYNAPSE,
    WHEEL,
    WHERE,
    submission,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "spark"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_of_each_platform(name: str) -> None:
    exporter, given = DOCUMENTS[name]
    document = exporter.document(given)
    # YAML includes JSON.
    assert document == yaml.safe_load((GOLDEN / name).read_text())
    assert exporter.document(given) == document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_contains_the_same_job(name: str) -> None:
    """The specification reaches the job unchanged on every platform."""
    exporter, given = DOCUMENTS[name]
    [arguments] = _arguments(exporter.document(given))
    assert JobSpec.from_json(json.loads(arguments["--spec"])) == SPEC
    assert arguments["--report"] == WHERE["report"]


def test_every_exporter_has_a_document() -> None:
    assert {name.partition(".")[0] for name in DOCUMENTS} == EXPORTERS.keys()


def _arguments(value: Any) -> list[dict[str, str]]:
    """The arguments of a job, which a request has as a list or as an object."""
    if isinstance(value, dict):
        found = [each for item in value.values() for each in _arguments(item)]
        return [*found, value] if "--spec" in value else found
    if not isinstance(value, list):
        return []
    if "--spec" in value:
        assert value[0::2] == ["--spec", "--report"]
        return [dict(zip(value[0::2], value[1::2], strict=True))]
    return [each for item in value for each in _arguments(item)]


@pytest.mark.parametrize(
    ("exporter", "given", "problem"),
    [
        (LIVY, submission(IMAGE), "image"),
        (SYNAPSE, submission(IMAGE), "image"),
        (FABRIC, submission(IMAGE), "image"),
        (EMR, submission(IMAGE), "image"),
        (GLUE, submission(IMAGE, EXECUTORS, environment={}), "neither an image nor the path"),
        (GLUE, submission(PACKED, EXECUTORS, environment={}), "neither an image nor the path"),
        (GLUE, submission(WHEEL, EXECUTORS), "environment variable TMPDIR"),
        (GLUE, submission(WHEEL, environment={}), "worker type determines"),
        (GLUE, submission(ARCHIVE, EXECUTORS, environment={}), "one environment"),
        (
            GLUE,
            submission(WHEEL, EXECUTORS, environment={}, conf={"spark.ui.port": "40 41"}),
            "spaces in the value of the Spark property spark.ui.port",
        ),
        (
            GLUE,
            submission(replace(WHEEL, py_files=("gs://x.zip",)), EXECUTORS, environment={}),
            "gs://x.zip",
        ),
        (GLUE_JOB, submission(WHEEL, Resources(), environment={}), "number of workers"),
        (
            replace(GLUE_JOB, glue_version="4.0"),
            submission(WHEEL, EXECUTORS, environment={}),
            "Python of Glue 4.0 is too old",
        ),
        (JOB, submission(IMAGE), "image"),
        (KUBERNETES, submission(PACKED), "no image"),
        (DATABRICKS, submission(PACKED, Resources()), "environment of its own"),
        (DATABRICKS, submission(replace(WHEEL, py_files=("x.zip",)), Resources()), "x.zip"),
        (DATABRICKS, submission(WHEEL), "node type determines"),
        (DatabricksRun(), submission(WHEEL, Resources()), "needs a cluster"),
        (DatabricksRun(existing_cluster_id="c"), submission(WHEEL, Resources()), "its own version"),
    ],
)
def test_settings_a_platform_lacks_are_refused(
    exporter: Exporter, given: Submission, problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        exporter.document(given)


def test_an_existing_cluster_is_only_referenced() -> None:
    given = Submission.of(SPEC, **WHERE, code=WHEEL)
    [task] = DatabricksRun(existing_cluster_id="c").document(given)["tasks"]
    assert (task["existing_cluster_id"], "new_cluster" in task) == ("c", False)


def test_a_batch_of_fabric_needs_no_environment_and_no_sizes() -> None:
    body = FabricBatch().document(Submission.of(SPEC, **WHERE, code=ARCHIVE))
    assert body.keys() == {"name", "file", "args", "pyFiles", "archives"}


def test_a_run_of_glue_may_leave_the_workers_to_the_job() -> None:
    run = type(GLUE)(job_name="j").document(Submission.of(SPEC, **WHERE, code=ARCHIVE))
    assert run.keys() == {"JobName", "Arguments"}
    assert run["Arguments"]["--python-virtual-env"] == "s3://lake/code/environment.tar.gz"
