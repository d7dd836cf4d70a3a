"""A policy with tables, and runs of its Dags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.providers.standard.operators.hitl import HITLOperator

from delta_maintenance import clock
from tests.support.orchestrators.airflow_versions import DagBag
from tests.support.orchestrators.policy_dags import DAGS, Somebody
from tests.support.servers.loopback import Reply, Request, serve


@pytest.fixture
def policy(
    airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Writes the policy that Airflow's configuration names."""

    def write(*tables: dict[str, Any], **defaults: Any) -> Path:
        path = tmp_path / "policy.yaml"
        document = {"version": 1, "defaults": defaults, "tables": list(tables)}
        path.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__POLICY", str(path))
        monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
        return path

    return write


@pytest.fixture
def run(run_dag: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs a Dag; returns the XCom values and states by task and map index."""

    def run(dag_id: str, **options: Any) -> dict[str, Any]:
        # Read again each time, because a task stays rendered within one process.
        bag = DagBag(dag_folder=str(DAGS / "delta_maintenance_dags.py"))
        assert not bag.import_errors
        done = run_dag(bag.dags[dag_id], **options)
        found = {"state": str(done.state)}
        for ti in done.get_task_instances():
            name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
            told = ti.xcom_pull(ti.task_id, map_indexes=ti.map_index)
            found[name] = SimpleNamespace(
                state=str(ti.state), told=told, label=ti.rendered_map_index
            )
        return found

    return run


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str | None, str]]]:
    """The tokens and texts of messages to the webhook of the connection `chat`."""
    heard: list[tuple[str | None, str]] = []

    def answer(request: Request) -> Reply:
        heard.append((request.headers["Authorization"], json.loads(request.body)["text"]))
        return Reply(status=200)

    with serve(answer) as address:
        connection = {"conn_type": "http", "host": f"{address}/hook", "password": "of the chat"}
        monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
        yield heard


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> Somebody:
    """Answers immediately, because tests do not wait for approvals."""
    somebody = Somebody()

    def answer(self: HITLOperator, context: Any) -> dict[str, Any]:
        somebody.shown.append(f"{self.subject}\n{self.body}")
        somebody.meanwhile()
        event = {
            "chosen_options": [somebody.answer],
            "params_input": somebody.given,
            "responded_at": clock.now(),
            "responded_by_user": {"id": somebody.name, "name": somebody.name},
        }
        return self.execute_complete(context, event)

    monkeypatch.setattr(HITLOperator, "execute", answer)
    return somebody
