"""Policy and assessments in Airflow's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.policies import assessments
from delta_maintenance.storage import Store, open_store
from delta_maintenance_airflow import settings
from tests.support.tables.assessed_tables import assessment


def configure(monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    for name, value in options.items():
        monkeypatch.setenv(f"AIRFLOW__DELTA_MAINTENANCE__{name.upper()}", value)


def test_assessments_are_below_airflows_home_by_default() -> None:
    from airflow.configuration import AIRFLOW_HOME

    store = settings.assessment_store()
    assert Path(store.uri) == Path(AIRFLOW_HOME) / "delta_maintenance" / "assessments"


def test_the_configuration_sets_the_location_of_assessments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, assessments=f" {tmp_path}/kept ")
    settings.assessment_store().save(assessment())
    assert settings.assessment_store().find_by_name("orders") is not None
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_the_connection_opens_the_folder_of_assessments(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def noted(uri: str, options: Mapping[str, str] | None = None) -> Store:
        opened.append((uri, options))
        return open_store("memory://settings")

    monkeypatch.setattr(assessments, "open_store", noted)
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE",
        json.dumps({"conn_type": "delta", "login": "key", "password": "secret"}),
    )
    configure(monkeypatch, assessments="s3://lake/assessments", assessments_conn_id="lake")
    settings.assessment_store()
    ((uri, options),) = opened
    assert uri == "s3://lake/assessments"
    assert options["AWS_SECRET_ACCESS_KEY"] == "secret"


def test_the_policy_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.policy_path() is None
    configure(monkeypatch, policy="")
    assert settings.policy_path() is None
    configure(monkeypatch, policy="/opt/policy.yaml")
    assert settings.policy_path() == "/opt/policy.yaml"
