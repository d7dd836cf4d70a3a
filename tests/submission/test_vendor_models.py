"""Requests compared with what the vendor of each platform publishes.

Every field of every request is misspelt once, which its model must refuse.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from delta_maintenance.submission.exporters import DatabricksRun, Exporter
from delta_maintenance.submission.specification import Resources, Submission
from tests.support.submissions import (
    DOCUMENTS,
    IMAGE,
    KUBERNETES,
    PACKED,
    WHEEL,
    replace,
    submission,
)

Refusal = Callable[[dict[str, Any]], object]
"""What is wrong with a request, as a true value or an exception; a false value for a valid one."""


def botocore(service: str, operation: str) -> Refusal:
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model(service).operation_model(operation).input_shape
    return lambda document: ParamValidator().validate(document, shape).generate_report()


def dataproc(message: str) -> Refusal:
    kinds = pytest.importorskip(
        "google.cloud.dataproc_v1", reason=_missing("google-cloud-dataproc")
    )
    from google.protobuf import json_format

    kind = getattr(kinds, message)
    return lambda document: json_format.ParseDict(document, kind.pb(kind())) and None


def databricks() -> Refusal:
    jobs = pytest.importorskip("databricks.sdk.service.jobs", reason=_missing("databricks-sdk"))
    known = inspect.signature(jobs.JobsAPI.submit).parameters

    def refusal(document: dict[str, Any]) -> object:
        unknown = document.keys() - known.keys()
        tasks = document.get("tasks", [])
        # Their classes drop unknown fields.
        return unknown or [jobs.SubmitTask.from_dict(task).as_dict() for task in tasks] != tasks

    return refusal


def synapse() -> Refusal:
    spark = pytest.importorskip("azure.synapse.spark", reason=_missing("azure-synapse-spark"))
    sent: list[Any] = []

    class Stopped(Exception):
        pass

    class Transport:
        def send(self, request: Any, **_: Any) -> None:
            sent.append(json.loads(request.body))
            raise Stopped

        open = close = __enter__ = lambda self: None

        def __exit__(self, *_: object) -> None:
            pass

    client = spark.SparkClient(
        SimpleNamespace(get_token=lambda *_, **__: SimpleNamespace(token="t", expires_on=1 << 40)),
        "https://lake.dev.azuresynapse.net",
        "pool",
        transport=Transport(),
    )

    def refusal(document: dict[str, Any]) -> object:
        with pytest.raises(Stopped):
            client.spark_batch.create_spark_batch_job(document)
        # The client drops unknown fields.
        return sent.pop() != document

    return refusal


def kubernetes() -> Refusal:
    models = pytest.importorskip("kubeflow_spark_api.models", reason=_missing("kubeflow-spark-api"))
    kind = models.SparkV1beta2SparkApplication
    return lambda document: kind.from_dict(deepcopy(document)).to_dict() != document


def kubernetes_definition() -> Refusal:
    text = Path(_file("SPARK_APPLICATION_CRD", "the definition of the resource")).read_text()
    [version] = yaml.safe_load(text)["spec"]["versions"]
    return _schema(version["schema"]["openAPIV3Schema"], {})


def fabric() -> Refusal:
    text = Path(_file("FABRIC_LIVY_SWAGGER", "the OpenAPI document of Fabric's Livy")).read_text()
    definitions = yaml.safe_load(text)["definitions"]
    return _schema(definitions["BatchRequest"], definitions)


def livy() -> Refusal:
    with zipfile.ZipFile(_file("LIVY_SERVER_JAR", "the JAR of a Livy server")) as jar:
        compiled = jar.read("org/apache/livy/server/batch/CreateBatchRequest.class")
    # The names of the methods by which the server sets the fields of a request.
    known = {name.decode() for name in re.findall(rb"(\w+)_\$eq", compiled)}
    return lambda document: document.keys() - known


def _missing(package: str) -> str:
    return f"NO {package}: install the extra dev"


def _file(variable: str, what: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"NO {variable}: set it to the file with {what}; see docs/testing.md")
    return path


def _schema(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Refusal:
    validator = jsonschema.Draft7Validator(_closed(schema, definitions))
    return lambda document: [error.message for error in validator.iter_errors(document)]


def _closed(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without references, and without the fields that it does not name."""
    schema = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    closed = dict(schema)
    known = dict(schema.get("properties", {}))
    for part in closed.pop("allOf", ()):
        known |= _closed(part, definitions).get("properties", {})
    if known:
        closed["properties"] = {name: _closed(each, definitions) for name, each in known.items()}
        closed["additionalProperties"] = False
    if "items" in schema:
        closed["items"] = _closed(schema["items"], definitions)
    return closed


MODELS: Mapping[str, tuple[Callable[[], Refusal], str]] = {
    "livy": (livy, "livy.json"),
    "synapse": (synapse, "synapse.json"),
    "fabric": (fabric, "fabric.json"),
    # Fabric says that its batches are those of Livy, which the client of Synapse describes, too.
    "fabric-as-synapse": (synapse, "fabric.json"),
    "emr-serverless": (lambda: botocore("emr-serverless", "StartJobRun"), "emr-serverless.json"),
    "glue": (lambda: botocore("glue", "StartJobRun"), "glue.json"),
    "glue-job": (lambda: botocore("glue", "CreateJob"), "glue-job.json"),
    "databricks": (databricks, "databricks.json"),
    "databricks-cluster": (databricks, "existing cluster"),
    "dataproc": (lambda: dataproc("Batch"), "dataproc.json"),
    "dataproc-cluster": (lambda: dataproc("Job"), "dataproc-cluster.json"),
    "kubernetes": (kubernetes, "kubernetes.yaml"),
    "kubernetes-definition": (kubernetes_definition, "kubernetes.yaml"),
    "kubernetes-code": (kubernetes, "code in an image"),
    "kubernetes-code-definition": (kubernetes_definition, "code in an image"),
}
MORE: Mapping[str, tuple[Exporter, Submission]] = {
    "existing cluster": (
        DatabricksRun(existing_cluster_id="c"),
        submission(WHEEL, Resources(), conf={}, environment={}),
    ),
    "code in an image": (
        replace(KUBERNETES, name="vacuum-events"),
        submission(replace(PACKED, image=IMAGE.image)),
    ),
}
FREE = {"Arguments", "DefaultArguments", "conf", "properties", "sparkConf", "spark_conf"}
FREE |= {"spark_env_vars"}
"""Objects whose names are not those of a model."""


@pytest.mark.parametrize("name", MODELS)
def test_a_request_is_what_its_vendor_describes(name: str) -> None:
    model, document = MODELS[name]
    exporter, given = {**DOCUMENTS, **MORE}[document]
    request = exporter.document(given)
    refusal = model()
    assert not refusal(deepcopy(request))
    broken = list(_misspelt(request))
    assert len(broken) >= len(request)
    for where, wrong in broken:
        if model is kubernetes_definition and where.startswith(".metadata."):
            # A definition leaves them to Kubernetes, whose fields the other model has.
            continue
        assert _refused(refusal, wrong), f"{name} accepts {where}"


def _misspelt(request: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The request with each of its fields misspelt, one at a time."""
    items = request.items() if isinstance(request, dict) else enumerate(request)
    for key, value in list(items):
        if isinstance(request, dict):
            wrong = f"{key}x"
            yield f"{where}.{wrong}", {wrong if k == key else k: v for k, v in request.items()}
        if key not in FREE and isinstance(value, dict | list):
            for place, inner in _misspelt(value, f"{where}.{key}"):
                changed = deepcopy(request)
                changed[key] = inner
                yield place, changed


def _refused(refusal: Refusal, request: dict[str, Any]) -> bool:
    try:
        return bool(refusal(request))
    except Exception:
        return True
