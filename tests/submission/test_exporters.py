"""Requests of each platform for one submission: golden documents and schemas."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.submission.exporters import (
    DatabricksRun,
    DataprocBatch,
    DataprocJob,
    EmrServerlessJobRun,
    Exporter,
    LivyBatch,
    SparkApplication,
)
from delta_maintenance.submission.job_spec import JobSpec
from delta_maintenance.submission.specification import Code, Resources, Submission

GOLDEN = Path(__file__).parents[1] / "golden" / "spark"
SPEC = JobSpec(operation="vacuum", table="s3://lake/events", options={"retention": "P30D"})
APPLICATION = "s3://lake/code/job.py"
WHERE = {"report": "s3://lake/reports/1.json"}
PACKED = Code(
    application=APPLICATION,
    py_files=("s3://lake/code/delta_maintenance.zip",),
    archives=("s3://lake/code/environment.tar.gz#environment",),
    python="./environment/bin/python",
)
WHEEL = Code(
    application=APPLICATION, py_files=("s3://lake/code/delta_maintenance-0.1.0-py3-none-any.whl",)
)
IMAGE = Code(application=APPLICATION, image="registry.example/spark:4.0")
SIZE = Resources(
    driver_cores=1,
    driver_memory="2g",
    executors=4,
    executor_cores=2,
    executor_memory="1g",
    executor_memory_overhead="3g",
)


def submission(code: Code, resources: Resources = SIZE, **more: Any) -> Submission:
    more = {"conf": {"spark.task.maxFailures": 8}, "environment": {"TMPDIR": "/scratch"}, **more}
    return Submission.of(SPEC, **WHERE, code=code, resources=resources, **more)


LIVY = LivyBatch(name="vacuum-events", proxy_user="etl", queue="maintenance")
EMR = EmrServerlessJobRun(
    application_id="00fabc",
    execution_role_arn="arn:aws:iam::123456789012:role/lake",
    client_token="8f14e45f-ceea-467f-a0e6-000000000000",
    execution_timeout_minutes=60,
    log_uri="s3://lake/logs/",
)
DATABRICKS = DatabricksRun(
    spark_version="17.3.x-scala2.13",
    node_type_id="i3.xlarge",
    instance_profile_arn="arn:aws:iam::123456789012:instance-profile/lake",
    idempotency_token="one",
    timeout_seconds=3600,
)
BATCH = DataprocBatch(runtime_version="2.3", service_account="lake@p.iam.gserviceaccount.com")
JOB = DataprocJob(project_id="p", cluster_name="etl")
KUBERNETES = SparkApplication(
    namespace="lake", spark_version="4.0.1", service_account="spark", time_to_live_seconds=3600
)
DOCUMENTS: Mapping[str, tuple[Exporter, Submission]] = {
    "livy.json": (LIVY, submission(PACKED)),
    "emr-serverless.json": (EMR, submission(PACKED)),
    "databricks.json": (DATABRICKS, submission(WHEEL, Resources(executors=4))),
    "dataproc.json": (BATCH, submission(IMAGE)),
    "dataproc-cluster.json": (JOB, submission(PACKED)),
    "kubernetes.yaml": (KUBERNETES, submission(IMAGE)),
}


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
    [arguments] = _lists_with("--spec", exporter.document(given))
    assert arguments[0::2] == ["--spec", "--report"]
    assert JobSpec.from_json(json.loads(arguments[1])) == SPEC
    assert arguments[3] == WHERE["report"]


def _lists_with(word: str, value: Any) -> list[list[str]]:
    if isinstance(value, dict):
        return [found for item in value.values() for found in _lists_with(word, item)]
    if isinstance(value, list):
        return [value] if word in value else [f for item in value for f in _lists_with(word, item)]
    return []


def test_emr_serverless_requests_match_the_service_model() -> None:
    session = pytest.importorskip("botocore.session", reason="botocore comes with the extra s3")
    from botocore.validate import ParamValidator

    shape = (
        session.get_session()
        .get_service_model("emr-serverless")
        .operation_model("StartJobRun")
        .input_shape
    )
    exporter, given = DOCUMENTS["emr-serverless.json"]
    document = exporter.document(given)
    assert ParamValidator().validate(document, shape).generate_report() == ""
    broken = {**document, "executionRole": "x", "jobDriver": {}}
    assert "executionRole" in ParamValidator().validate(broken, shape).generate_report()


def test_the_resource_matches_the_spark_operator_crd() -> None:
    path = os.environ.get("SPARK_APPLICATION_CRD")
    if not path:
        pytest.skip("NO CRD: set SPARK_APPLICATION_CRD to the file of the operator's definition")
    [version] = yaml.safe_load(Path(path).read_text())["spec"]["versions"]
    exporter, given = DOCUMENTS["kubernetes.yaml"]
    for more in (given, submission(Code(**{**_fields(PACKED), "image": "x/y:1"}))):
        problems = _problems(exporter.document(more), version["schema"]["openAPIV3Schema"], "")
        assert problems == []
    broken = exporter.document(given) | {"spec": {"type": "Pythonic", "executor": {"count": 1}}}
    assert len(_problems(broken, version["schema"]["openAPIV3Schema"], "")) >= 3


def _fields(code: Code) -> dict[str, Any]:
    return code.to_json()


def _problems(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """The violations that Kubernetes would refuse, and unknown fields, which it would drop."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool}
    kind = schema.get("type")
    if kind in kinds and not isinstance(value, kinds[kind]):
        return [f"{where} is no {kind}"]
    if kind in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, int)):
        return [f"{where} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is none of {schema['enum']}"]
    found = [
        f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value
    ]
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += _problems(item, schema["items"], f"{where}[{index}]")
    known = schema.get("properties")
    if isinstance(value, dict):
        for name, item in value.items():
            if known is not None and name in known:
                found += _problems(item, known[name], f"{where}.{name}")
            elif "additionalProperties" in schema:
                found += _problems(item, schema["additionalProperties"], f"{where}.{name}")
            elif known is not None:
                found.append(f"{where}.{name} is unknown")
    return found


@pytest.mark.parametrize(
    ("exporter", "given", "problem"),
    [
        (LIVY, submission(IMAGE), "image"),
        (EMR, submission(IMAGE), "image"),
        (JOB, submission(IMAGE), "image"),
        (KUBERNETES, submission(PACKED), "no image"),
        (DATABRICKS, submission(PACKED, Resources()), "environment of its own"),
        (
            DATABRICKS,
            submission(replace(WHEEL, py_files=("x.zip",)), Resources()),
            "x.zip",
        ),
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
