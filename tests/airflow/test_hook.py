"""Storage options out of an Airflow connection."""

from __future__ import annotations

import json

import pytest

from delta_maintenance_airflow.hooks import DeltaHook


def test_a_connection_becomes_storage_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE",
        json.dumps(
            {
                "conn_type": "delta",
                "login": "key",
                "password": "secret",
                "extra": {
                    "region": "eu-west-1",
                    "endpoint_url": "",
                    "session_token": "token",
                    "AWS_ALLOW_HTTP": True,
                },
            }
        ),
    )
    assert DeltaHook("lake").storage_options() == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "region": "eu-west-1",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_connection_the_environment_decides(nothing: str | None) -> None:
    assert DeltaHook(nothing).storage_options() == {}


@pytest.mark.parametrize("address", ["/srv/a:b.parquet", "r.parquet", "./x:y", "file:///srv/r"])
def test_no_option_is_for_the_disks_of_the_worker(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "login": "key"}))
    assert DeltaHook("lake").options_for(address) is None
    assert DeltaHook("lake").options_for("s3://b/r") == {"AWS_ACCESS_KEY_ID": "key"}
    assert DeltaHook(None).options_for("s3://b/r") is None
