"""Readers whose checkpoint folders are on a store of their own, with other credentials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.errors import StorageError
from delta_maintenance.policies import OperationOutcome
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery, environment_options, open_policy_table
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.storage import open_store
from tests.operations.holds.test_streams import ID, batch, offset
from tests.support.emulators.s3_server import (
    Application,
    Environ,
    S3Server,
    StartResponse,
    serve_s3,
)
from tests.support.servers.ports import free_port
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

pytestmark = pytest.mark.server


def only_for(key: str, bucket: str) -> Any:
    """Refuses other credentials, and other buckets."""

    def intercept(application: Application) -> Application:
        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            known = f"Credential={key}/" in environ.get("HTTP_AUTHORIZATION", "")
            if known and environ["PATH_INFO"].startswith(f"/{bucket}"):
                return application(environ, start)
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"]

        return answer

    return intercept


@pytest.fixture
def other_server() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server


@pytest.fixture
def table(
    s3_server: S3Server, other_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> PolicyTable:
    """A table, and a stream that is far behind, on servers that each know one pair of credentials.

    Both emulators have the same buckets.
    """
    lake = f"s3://{s3_bucket}"
    s3_server.make_bucket("reader-state")
    state = "s3://reader-state/query"
    with closing(open_store(state, s3_server.storage_options)) as store:
        store.put("metadata", b"{}")
        for number, version in enumerate((1, 2)):
            store.put(f"offsets/{number}", batch(offset(version)))
            store.put(f"commits/{number}", b"v1\n{}")
    with closing(open_store(f"{lake}/t", s3_server.storage_options)) as store:
        for version in range(5):
            store.put(f"{version}.parquet", b"1")
        builder = TableBuilder(store)
        builder.commit([protocol(), metadata(id=ID), add("0.parquet")])
        for version in range(1, 5):
            builder.commit([remove(f"{version - 1}.parquet"), add(f"{version}.parquet")])
    s3_server.intercept = only_for("testing-key", s3_bucket)
    other_server.intercept = only_for("reader-key", "reader-state")
    for name, value in {"READER": "reader", "LAKE": "testing"}.items():
        monkeypatch.setenv(f"{name}_KEY", f"{value}-key")
        monkeypatch.setenv(f"{name}_SECRET", f"{value}-secret")
    reader = {
        "stream": state,
        "name": "silver",
        "storage": {"options": _by_reference(other_server, "READER")},
    }
    entry = {
        "uri": f"{lake}/t",
        "storage": {"options": _by_reference(s3_server, "LAKE")},
        "other_writers": "none",
        "readers": [reader],
    }
    (found,) = Policy.from_json({"version": 1, "tables": [entry]}).named_tables
    return found


def _by_reference(server: S3Server, name: str) -> dict[str, str]:
    """Storage options with references to credentials in the environment."""
    return {
        **server.storage_options,
        "AWS_ACCESS_KEY_ID": f"${{env:{name}_KEY}}",
        "AWS_SECRET_ACCESS_KEY": f"${{env:{name}_SECRET}}",
    }


def planned(table: PolicyTable, *, shared: bool = True) -> OperationOutcome:
    """Plans a vacuum, as an orchestrator does or without anything that knows other tables."""
    clones = PolicyClones(
        discover=lambda: Discovery((table,)), options_at=lambda rule, _: environment_options(rule)
    )
    with closing((opened := open_policy_table(table)).store):
        (outcome,) = run_operation(
            opened,
            table,
            "vacuum",
            plan_only=True,
            environment=RunEnvironment(
                clones=clones if shared else None, now=lambda: clock.now() + timedelta(days=30)
            ),
        ).outcomes
    return outcome


def with_options(table: PolicyTable, **options: str | None) -> PolicyTable:
    """The table with other storage options of its reader."""
    (reader,) = table.rules.readers
    assert reader.storage is not None
    known = {**reader.storage.options, **options}
    kept = {name: value for name, value in known.items() if value is not None}
    storage = reader.storage.model_copy(update={"options": kept})
    changed = reader.model_copy(update={"storage": storage})
    rules = table.rules.model_copy(update={"readers": (changed,)})
    return table.model_copy(update={"rules": rules})


@pytest.mark.parametrize("shared", [True, False])
def test_a_reader_is_read_with_its_own_credentials(table: PolicyTable, shared: bool) -> None:
    outcome = planned(table, shared=shared)
    assert outcome.status == "planned", outcome.reason
    assert outcome.result is not None
    (held,) = outcome.result["held"]
    assert (held["holder"], held["first_version"], held["files"]) == ("stream silver", 0, 4)
    # No secret is in what is stored or shown.
    assert "reader-secret" not in str(outcome.to_json())


def test_the_credentials_of_the_table_are_not_tried_there(table: PolicyTable) -> None:
    outcome = planned(with_options(table, AWS_ACCESS_KEY_ID="${env:LAKE_KEY}"))
    assert (outcome.status, outcome.retryable) == ("failed", False)
    assert "stream silver" in outcome.reason and "AccessDenied" in outcome.reason


def test_a_reader_whose_store_is_down_is_tried_again_later(table: PolicyTable) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    outcome = planned(with_options(table, AWS_ENDPOINT_URL=down))
    assert (outcome.status, outcome.retryable) == ("failed", True)
    assert outcome.exit_status == StorageError.exit_status
    assert "stream silver cannot be read" in outcome.reason
    assert "nothing is deleted" in outcome.reason
