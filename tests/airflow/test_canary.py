"""Canary secrets, for which everything that leaves a task is searched.

Each test has a connection with canaries as credentials, and searches all visible output for them,
in every spelling.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk._shared.secrets_masker import redact

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.watch import WaitCondition
from delta_maintenance.storage import open_store
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.hooks import DeltaHook
from delta_maintenance_airflow.lineage import dataset_name
from delta_maintenance_airflow.links import HealthPageLink
from delta_maintenance_airflow.operators import DeltaCheckpointOperator, DeltaFsckOperator
from delta_maintenance_airflow.operators.manual import DeltaManualOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.sensors import DeltaCommitSensor
from delta_maintenance_airflow.tasks import asset_uri
from delta_maintenance_airflow.triggers import DeltaCommitEventTrigger, DeltaCommitTrigger
from tests.support.emulators.s3_server import S3Server
from tests.support.orchestrators.airflow_versions import AirflowFailException, TaskDeferred
from tests.support.orchestrators.watching import State, eventually, run, running
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

CANARIES = (
    "canary-aws-secret/with+signs=",
    "canary-session-token",
    "canary-referred-secret",
    "Y2FuYXJ5LWFjY291bnQta2V5",
    "canary%2Bsignature%3D",
    "canary-client-secret",
    "canary-private-key",
)
GOOGLE_KEY = json.dumps({"type": "service_account", "private_key": CANARIES[6]})
BUCKET = "canaries"


def sings(*seen: Any) -> list[str]:
    """The canaries in what was seen, in any spelling."""
    text = "\n".join(one if isinstance(one, str) else repr(one) for one in seen)
    spellings = {
        spelling: canary
        for canary in CANARIES
        for spelling in (canary, quote(canary, safe=""), json.dumps(canary)[1:-1], repr(canary))
    }
    return sorted({canary for spelling, canary in spellings.items() if spelling in text})


def test_a_leaked_canary_is_detected() -> None:
    assert sings({"key": CANARIES[0]}, f"x{quote(CANARIES[0], safe='')}x") == [CANARIES[0]]


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    s3_server.make_bucket(BUCKET)
    return s3_server


@pytest.fixture
def connections(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections with canaries: in the form, by reference, for every store."""
    extra = {"endpoint_url": server.url, "region": "us-east-1"}
    connections: dict[str, dict[str, Any]] = {
        "own": {
            "conn_type": "delta",
            "login": "an-id",
            "password": CANARIES[0],
            "extra": {**extra, "session_token": CANARIES[1]},
        },
        "keys": {"conn_type": "aws", "login": "an-id", "password": CANARIES[2]},
        "referring": {"conn_type": "delta", "extra": {**extra, "storage_conn_id": "keys"}},
        "azure": {
            "conn_type": "delta",
            "extra": {"azure_account_key": CANARIES[3], "azure_account_name": "acc"},
        },
        "signed": {
            "conn_type": "delta",
            "extra": {"azure_sas_token": f"sv=1&sig={CANARIES[4]}", "azure_account_name": "acc"},
        },
        "principal": {"conn_type": "delta", "extra": {"azure_client_secret": CANARIES[5]}},
        "google": {"conn_type": "delta", "extra": {"google_key": GOOGLE_KEY, "region": "x"}},
        "misplaced": {"conn_type": "delta", "extra": {"secret_kye": CANARIES[0]}},
        "endpoint": {
            "conn_type": "delta",
            "extra": {"endpoint_url": f"http://user:{CANARIES[1]}@127.0.0.1:1"},
        },
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
    }
    for name, value in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(value))


@pytest.fixture
def table(server: S3Server, request: pytest.FixtureRequest) -> TableBuilder:
    """Three commits in a bucket."""
    address = f"s3://{BUCKET}/{abs(hash(request.node.name))}"
    table = TableBuilder(open_store(address, server.storage_options))
    table.commit([features("v2Checkpoint"), metadata()])
    table.commit([add("a.parquet")])
    table.commit([remove("a.parquet"), add("b.parquet", size=3)])
    table.store.put("b.parquet", b"abc")
    return table


@pytest.fixture
def denying(server: S3Server) -> Iterator[Callable[[], None]]:
    """Makes the server reject every request and repeat its contents."""

    def deny(application: Any) -> Any:
        def answer(environ: Any, start_response: Any) -> list[bytes]:
            start_response("403 Forbidden", [])
            told = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
            message = f"no access with {told} and {CANARIES[0]}"
            return [
                f"<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>".encode()
            ]

        return answer

    def begin() -> None:
        server.intercept = deny

    yield begin
    server.intercept = None


Printed = Callable[[], str]


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Printed:
    """All that was logged and printed so far, without Airflow's masking."""
    caplog.set_level(logging.INFO)

    def all_of_it() -> str:
        out, err = capfd.readouterr()
        return "\n".join([caplog.text, out, err])

    return all_of_it


@pytest.mark.parametrize("conn_id", ["own", "referring"])
def test_an_operator_leaks_no_credentials(
    connections: None,
    server: S3Server,
    table: TableBuilder,
    task_context: dict[str, Any],
    printed: Printed,
    conn_id: str,
) -> None:
    report = f"{table.store.root}-reports/"
    checkpoint = DeltaCheckpointOperator(
        task_id="t",
        table_uri=table.store.root,
        delta_conn_id=conn_id,
        engine="local",
        options={"kind": "v2-json"},
    )
    fsck = DeltaFsckOperator(
        task_id="f",
        table_uri=table.store.root,
        delta_conn_id=conn_id,
        report_uri=report,
        engine="local",
    )
    outcomes = [checkpoint.execute(task_context), fsck.execute(task_context)]
    assert outcomes[0]["status"] == "written"
    assert not sings(
        outcomes,
        task_context["ti"].mock_calls,
        vars(checkpoint),
        vars(fsck),
        [getattr(checkpoint, field) for field in checkpoint.template_fields],
        printed(),
    )
    written = [store_text(table.store, "_delta_log")]
    written += [store_text(open_store(report, server.storage_options), "")]
    assert len(written[1]) > 100
    assert not sings(*written)


@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKIA1:{CANARIES[0]}@{BUCKET}/t",
        f"s3:AKIA1:{CANARIES[0]}@{BUCKET}/t",
        f"abfss://user:{CANARIES[1]}@acct.dfs.core.windows.net/t",
        f"az://data/t?sv=1&sig={CANARIES[4]}",
        f"file://user:{CANARIES[1]}@host/t",
        f"simplecache::s3://AKIA1:{CANARIES[0]}@{BUCKET}/t",
    ],
)
def test_an_address_with_credentials_is_refused_and_not_shown(
    connections: None,
    monkeypatch: pytest.MonkeyPatch,
    task_context: dict[str, Any],
    printed: Printed,
    address: str,
) -> None:
    tested = {"conn_type": "delta", "extra": {"test_address": address}}
    monkeypatch.setenv("AIRFLOW_CONN_TESTED", json.dumps(tested))
    where = {"table_uri": address, "delta_conn_id": "own"}
    raised: list[str] = [DeltaHook("tested").test_connection()[1]]
    for task in (
        DeltaCheckpointOperator(task_id="t", engine="local", **where),
        DeltaFsckOperator(task_id="f", engine="local", **where),
        DeltaCommitSensor(task_id="s", version=99, **where),
        DeltaCommitSensor(task_id="d", version=99, deferrable=True, **where),
    ):
        with pytest.raises(AirflowFailException) as failure:
            task.execute(task_context)
        raised += every(failure.value)
    made: list[Callable[[], object]] = [
        lambda: DeltaCommitTrigger(condition={"version": 99}, **where),
        lambda: DeltaCommitEventTrigger(**where),
        lambda: asset_uri(address),
        lambda: DeltaHook("own").storage_options(address),
    ]
    for make in made:
        with pytest.raises(InvalidRequestError) as refused:
            make()
        raised += every(refused.value)
    assert dataset_name(address) is None
    assert not sings(*raised, printed(), task_context["ti"].mock_calls)


@pytest.mark.parametrize("any_address", ["False", "True"])
@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKIA1:{CANARIES[0]}@{BUCKET}/t",
        f"az://data/t?sv=1&sig={CANARIES[4]}",
        f"abfss://user:{CANARIES[1]}@acct.dfs.core.windows.net/t",
    ],
)
def test_an_address_that_a_form_gives_is_neither_shown_nor_stored(
    connections: None,
    airflow_db: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    task_context: dict[str, Any],
    printed: Printed,
    address: str,
    any_address: str,
) -> None:
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ANY_ADDRESS", any_address)
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "store"))
    (tmp_path / "policy.yaml").write_text("version: 1\n")
    seen: list[str] = []
    for table in ({"uri": address}, {"name": address}):
        given = {"table": table, "policy": str(tmp_path / "policy.yaml")}
        for task in (
            DeltaManualOperator(task_id="m", operation="vacuum", plan_only=True, **given),
            DeltaPolicyRunOperator(task_id="p", **given),
        ):
            with pytest.raises(AirflowFailException) as failure:
                task.execute(task_context)
            seen += every(failure.value)
            seen.append(HealthPageLink().get_link(task, ti_key=None))
    stored = [path.name + path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not sings(*seen, *stored, printed(), task_context["ti"].mock_calls)


def store_text(store: Any, folder: str) -> str:
    """Every byte of a folder."""
    files = list(store.list_from(folder))
    return "\n".join(store.read(file.path).decode("latin-1") for file in files)


@pytest.mark.parametrize("conn_id", ["own", "referring"])
def test_a_rejected_login_leaks_nothing(
    connections: None,
    table: TableBuilder,
    task_context: dict[str, Any],
    printed: Printed,
    denying: Callable[[], None],
    conn_id: str,
) -> None:
    denying()
    where = {"table_uri": table.store.root, "delta_conn_id": conn_id}
    raised, traces = [], []
    for task in (
        DeltaCheckpointOperator(task_id="t", engine="local", **where),
        DeltaCommitSensor(task_id="s", version=99, **where),
    ):
        with pytest.raises(AirflowFailException) as failure:
            task.execute(task_context)
        raised.append(str(failure.value))
        traces += every(failure.value)
    raised.append(DeltaHook(conn_id).test_connection()[1])

    async def triggers() -> None:
        asked = WaitCondition(version=99).to_json()
        waiting = DeltaCommitTrigger(condition=asked, **where)
        watching = DeltaCommitEventTrigger(**where)
        async with running(waiting.run()) as one, running(watching.run()) as other:
            await eventually(lambda: bool(one and other))
        raised.extend([*one, *other, repr(waiting), repr(watching)])

    run(triggers())
    assert any("AccessDenied" in str(one) for one in raised)
    # A traceback contains the text of the server, which only Airflow's masks remove from its logs.
    said = sings(*raised, printed(), redact("\n".join(traces)))
    # The server of this test has one secret that the referring connection does not have.
    assert not [canary for canary in said if conn_id == "own" or canary != CANARIES[0]]
    assert sings(*traces)


def every(error: BaseException | None) -> list[str]:
    """An error and all that led to it, as a traceback would print them."""
    found = []
    while error is not None:
        found += [str(error), repr(error), repr(error.args)]
        error = error.__cause__ or error.__context__
    return found


@pytest.mark.parametrize("conn_id", ["own", "referring"])
def test_a_trigger_stores_only_the_id_of_a_connection(
    connections: None, table: TableBuilder, printed: Printed, conn_id: str
) -> None:
    where = {"table_uri": table.store.root, "delta_conn_id": conn_id}
    sensor = DeltaCommitSensor(task_id="s", after_version=2, deferrable=True, **where)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    watcher = DeltaCommitEventTrigger(poll_interval=0.05, **where)
    serialized = [deferred.value.trigger.serialize(), watcher.serialize()]
    assert all(conn_id in json.dumps(kwargs) for _, kwargs in serialized)
    state = State()
    watcher.asset_state_store = type("States", (), {"_by_name": {"a": state}})()

    async def scenario() -> list[Any]:
        trigger = DeltaCommitTrigger(**{**serialized[0][1], "poll_interval": 0.05})
        async with running(trigger.run()) as one, running(watcher.run()) as other:
            await eventually(lambda: bool(state.values))
            table.commit([add("c.parquet")])
            await eventually(lambda: bool(one and other))
        return [*one, *other]

    events = run(scenario())
    assert [event["status"] for event in events] == ["success", "changed"]
    assert not sings(
        serialized,
        deferred.value,
        events,
        state.values,
        watcher.shared_stream_key(),
        [repr(watcher), vars(sensor)],
        printed(),
    )


SUBMIT = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
spec = words[words.index("--spec") + 1]
seen = {{"words": words, "environment": dict(os.environ), "mode": os.stat(spec[1:]).st_mode}}
seen["spec"] = json.load(open(spec[1:]))
json.dump(seen, open({seen!r}, "w"))
print("the driver says that something went wrong")
sys.exit(1)
"""


# The provider leaves the pipe from spark-submit to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_spark_job_gets_credentials_only_from_a_private_file(
    connections: None,
    table: TableBuilder,
    task_context: dict[str, Any],
    printed: Printed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
    seen = tmp_path / "seen.json"
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(SUBMIT.format(python=sys.executable, seen=str(seen)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    task = DeltaCheckpointOperator(
        task_id="t",
        table_uri=table.store.root,
        delta_conn_id="own",
        engine="spark",
        options={"kind": "v2-json"},
    )
    with pytest.raises((AirflowException, DeltaMaintenanceError)) as failure:
        task.execute(task_context)
    started = json.loads(seen.read_text())
    # It got them.
    assert set(sings(started["spec"])) == {CANARIES[0], CANARIES[1]}
    assert stat.S_IMODE(started["mode"]) == 0o600
    # The worker of this test has its connections in variables; others have them elsewhere.
    ours = {
        name: value
        for name, value in started["environment"].items()
        if not name.startswith("AIRFLOW_CONN_")
    }
    assert not sings(
        started["words"], ours, every(failure.value), task_context["ti"].mock_calls, printed()
    )
    gc.collect()


@pytest.mark.parametrize(
    ("conn_id", "address"),
    [
        ("azure", "abfss://lake@other.dfs.core.windows.net/t"),
        ("azure", "s3://"),
        ("signed", "abfss://lake@other.dfs.core.windows.net/t"),
        ("principal", "abfss://lake@acc.dfs.core.windows.net/t"),
        ("google", "gs://lake/../t"),
        ("misplaced", "s3://lake/t"),
        ("endpoint", "s3://lake/t"),
        ("endpoint", "gs://lake/t"),
    ],
)
def test_options_that_are_refused_are_named_and_not_shown(
    connections: None, printed: Printed, conn_id: str, address: str
) -> None:
    asked = WaitCondition(version=1).to_json()
    trigger = DeltaCommitTrigger(table_uri=address, condition=asked, delta_conn_id=conn_id)

    async def scenario() -> list[Any]:
        async with running(trigger.run()) as events:
            await eventually(lambda: bool(events))
        return events

    with pytest.raises(DeltaMaintenanceError) as refusal:
        DeltaHook(conn_id).open_table(address)
    events = asyncio.run(scenario())
    assert events[0]["status"] == "error"
    assert not sings(*every(refusal.value), events, printed())
