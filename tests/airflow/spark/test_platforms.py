"""The examples of docs/integrations/spark.md, with the operators of the providers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from airflow.sdk import DAG

from delta_maintenance.submission import JobSpec
from delta_maintenance.submission.exporters import EXPORTERS

PAGE = Path(__file__).parents[3] / "docs" / "integrations" / "spark.md"
_, _, PLATFORMS = PAGE.read_text().partition("\n## Spark jobs on other platforms\n")
FIRST, *SECTIONS = re.split(r"^### ", PLATFORMS, flags=re.MULTILINE)
EXAMPLES = {
    section.partition("\n")[0]: section for section in SECTIONS if "airflow.providers" in section
}
CONTEXT = {
    "ts_nodash": "20261121T000000",
    "ti": SimpleNamespace(try_number=2, xcom_pull=lambda task_ids: f"id-of-{task_ids}"),
}
REPORT = "s3://lake/reports/vacuum-20261121T000000-2"


def run(heading: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the code of a section after that of the introduction; returns its names and its
    operators, with rendered templates.
    """
    programs = _blocks(EXAMPLES[heading])
    for module in re.findall(r"^from (airflow\.providers\.\S+)", "".join(programs), re.MULTILINE):
        if not _exists(module):
            pytest.skip(f"NO {module}: install the extra platforms; see docs/testing.md")
    names: dict[str, Any] = {}
    with DAG("example", schedule=None) as dag:
        for program in (*_blocks(FIRST), *programs):
            exec(program, names)
    for operator in dag.tasks:
        operator.render_template_fields(CONTEXT)
    return names, dict(dag.task_dict)


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _arguments(value: Any) -> Iterator[Mapping[str, str]]:
    if isinstance(value, Mapping):
        if "--spec" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        if "--spec" in value:
            yield dict(zip(value[0::2], value[1::2], strict=True))
        for item in value:
            yield from _arguments(item)


@pytest.mark.parametrize("heading", EXAMPLES)
def test_every_operator_gets_the_job_with_its_templates_rendered(heading: str) -> None:
    names, operators = run(heading)
    starting = {task: each for task, each in operators.items() if not task.endswith("_ended")}
    for task, operator in starting.items():
        assert task.replace("_", "-") in EXPORTERS
        assert any(kind.__module__.startswith("airflow.prov") for kind in type(operator).__mro__)
        rendered = [getattr(operator, name) for name in operator.template_fields]
        [arguments] = _arguments(rendered)
        assert JobSpec.from_json(json.loads(arguments["--spec"])) == names["job"]
        assert arguments["--report"] == REPORT


def test_every_exporter_has_an_example() -> None:
    tasks = re.findall(r'task_id="(\w+)"', "".join(EXAMPLES.values()))
    # Users create the job of Glue once.
    shown = {task.replace("_", "-") for task in tasks if not task.endswith("_ended")}
    assert shown == EXPORTERS.keys() - {"glue-job"}


def test_the_operator_of_livy_sends_the_batch() -> None:
    names, operators = run("Livy")
    sent = operators["livy"].hook.build_post_batch_body(**operators["livy"].spark_params)
    batch = {**names["batch"], "args": sent["args"]}
    assert {name: value for name, value in sent.items() if value is not None} == batch


def test_the_sensor_of_fabric_follows_the_batch_to_its_end() -> None:
    names, operators = run("Microsoft Fabric")
    assert operators["fabric_ended"].url.endswith("/batches/id-of-fabric")
    assert operators["fabric_ended"].upstream_task_ids == {"fabric"}
    assert names["batch_id"]({"id": "431e8d7b"}) == "431e8d7b"
    states = {state: names["has_ended"]({"state": state}) for state in ("starting", "success")}
    assert states == {"starting": False, "success": True}
    with pytest.raises(RuntimeError, match="dead"):
        names["has_ended"]({"state": "dead"})


def test_glue_starts_a_run_of_the_job_that_was_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against moto, which accepts the parameters of the service and runs nothing."""
    names, operators = run("AWS Glue")
    reason = "NO BOTO3 AND MOTO: install the extra platforms; see docs/testing.md"
    boto3, moto = (pytest.importorskip(name, reason=reason) for name in ("boto3", "moto"))
    from tests.support.submissions import DOCUMENTS

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    exporter, given = DOCUMENTS["glue-job.json"]
    job = exporter.document(given)
    with moto.mock_aws():
        client = boto3.client("glue")
        client.create_job(**job)
        operator = operators["glue"]
        operator.aws_conn_id, operator.deferrable, operator.wait_for_completion = None, False, False
        started = operator.execute({"ti": MagicMock()})
        found = client.get_job_run(JobName="delta-maintenance", RunId=started)["JobRun"]
    assert found["Arguments"] == {**job["DefaultArguments"], **operator.script_args}
    assert found["Arguments"]["--report"] == REPORT
    assert (found["WorkerType"], found["NumberOfWorkers"]) == ("G.1X", 5)


def test_the_operator_of_kubernetes_creates_the_resource() -> None:
    names, operators = run("Spark operator on Kubernetes")
    from airflow.providers.cncf.kubernetes.operators.custom_object_launcher import (
        CustomObjectLauncher,
    )

    operator = operators["kubernetes"]
    body = CustomObjectLauncher(
        name="vacuum-events",
        namespace="lake",
        kube_client=None,
        custom_obj_api=None,
        template_body=operator.template_body,
    ).body
    assert body["spec"] == operator.template_spec["spark"]["spec"]
