"""Stores with the credentials that a catalog vends for one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.catalogs import source_of
from delta_maintenance.catalogs.reference import locate
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, RefusedError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.rest import Answer
from delta_maintenance.storage import open_store
from delta_maintenance.storage.addresses import SharedClients
from delta_maintenance.storage.azure import AzureClient
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.storage.options import parse_options
from delta_maintenance.table.read import open_table
from tests.support.emulators.gcs_server import GCSServer
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.servers.unity_delta import UnityServer, UnityTable, serve_unity
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import log_text

pytestmark = pytest.mark.server

_NAME = "uc://main.s.t"


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with serve_unity() as server:
        yield server


@pytest.fixture
def on_s3(unity: UnityServer, s3_server: S3Server, s3_bucket: str) -> dict[str, str]:
    """The options for a table on S3 whose server accepts vended keys only."""
    unity.add("main.s.t", UnityTable(location=f"s3://{s3_bucket}/t"))
    s3_server.intercept = unity.guarded
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    own = {name: v for name, v in s3_server.storage_options.items() if name not in keys}
    return {**own, **unity.options}


def _open(options: Mapping[str, str], **settings: Any) -> Store:
    located = locate(_NAME, options, environment={})
    return open_store(located.address, located.storage_options, **settings)


@pytest.mark.parametrize("clients", [None, SharedClients()])
def test_reading_asks_for_reading_and_the_first_write_for_more(
    unity: UnityServer, on_s3: dict[str, str], clients: SharedClients | None
) -> None:
    store = _open(on_s3, clients=clients)
    assert unity.vended() == []
    assert [*store.list_from("")] == []
    assert store.stat("a") is None
    assert unity.vended() == ["READ"]
    assert store.put_if_absent("a", b"x") is Put.DONE
    assert store.read("a") == b"x"
    assert store.delete_many(["a"]) == {}
    assert unity.vended() == ["READ", "READ_WRITE"]


def test_the_delta_api_vends_for_catalog_managed_tables(
    unity: UnityServer, on_s3: dict[str, str]
) -> None:
    unity.tables["main.s.t"].managed = True
    assert _open(on_s3).stat("a") is None
    assert any("/delta/v1/catalogs/main/schemas/s/tables/t/cred" in r for r in unity.requests)
    unity.old = True
    source_of.cache_clear()
    with serve_unity() as old:
        old.old = True
        old.tables, old.keys = unity.tables, unity.keys
        assert _open({**on_s3, **old.options}).stat("a") is None
        assert old.requests[-1] == ("POST /api/2.1/unity-catalog/temporary-table-credentials READ")


def test_keys_that_the_store_rejects_are_replaced_in_the_middle_of_the_work(
    unity: UnityServer, on_s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_maintenance.catalogs.credentials._PAUSE", timedelta(0))
    store = _open(on_s3)
    for number in range(5):
        assert store.put_if_absent(f"f{number}", b"x") is Put.DONE
        unity.reject_keys()
    assert {file.path for file in store.list_from("")} == {f"f{number}" for number in range(5)}
    assert unity.vended() == ["READ"] + 6 * ["READ_WRITE"]


def test_keys_are_renewed_in_the_middle_of_a_long_vacuum(
    unity: UnityServer,
    on_s3: dict[str, str],
    s3_server: S3Server,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every request takes a second, and a key lives for five."""
    files = 6000
    s3_server.fill(s3_bucket, [f"t/dead {n}.parquet" for n in range(files)], b"x")
    log = log_text([protocol(), metadata()])
    s3_server.fill(s3_bucket, [f"t/_delta_log/{0:020}.json"], log)
    started, passed, refused = clock.now(), [0], []
    monkeypatch.setattr(clock, "now", lambda: started + timedelta(seconds=passed[0]))
    monkeypatch.setattr(f"{vacuum.__name__}.operation.require_same_clock", lambda *_, **__: None)

    def slow(application: Application) -> Application:
        guarded = unity.guarded(application)

        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            passed[0] += 1

            def noting(status: str, *rest: Any) -> Any:
                refused.extend([status] if status[:3] in ("400", "403") else [])
                return start(status, *rest)

            return guarded(environ, noting)

        return answer

    unity.lifetime_ms = 5_000
    s3_server.intercept = slow
    table, later = open_table(_NAME, on_s3), started + timedelta(days=8)
    surveyed = vacuum.survey(table.snapshot(), VacuumOptions(allow_large_delete=True), now=later)
    assert unity.vended() == ["READ"] * len(unity.keys)
    context = RunContext.at(later)
    result = vacuum.apply(table, surveyed.plan, context=context, surveyed=surveyed)
    assert (result.deleted, result.failed) == (files, 0)
    assert refused == []
    assert len(unity.keys) >= passed[0] // 5


def test_a_pinned_access_refuses_writing_before_anything_is_sent(
    unity: UnityServer, on_s3: dict[str, str]
) -> None:
    store = _open({**on_s3, "catalog_access": "read"})
    store.stat("a")
    with pytest.raises(RefusedError, match="opened for reading only"):
        store.put_if_absent("a", b"x")
    assert unity.vended() == ["READ"]


def test_a_refusal_of_writing_names_all_rights(unity: UnityServer, on_s3: dict[str, str]) -> None:
    unity.tables["main.s.t"].rights = frozenset(("READ",))
    store = _open(on_s3)
    assert store.stat("a") is None
    with pytest.raises(CatalogError) as caught:
        store.put_if_absent("a", b"x")
    text = str(caught.value)
    assert "which need USE CATALOG, USE SCHEMA, SELECT and MODIFY (" in text
    assert text.count("uc://main.s.t") == 2
    assert caught.value.exit_status == 3 and not caught.value.retryable


def test_keys_for_another_table_under_the_name_are_not_taken_for_missing_ones(
    unity: UnityServer, on_s3: dict[str, str], s3_bucket: str
) -> None:
    unity.tables["main.s.t"].managed = True
    store = _open(on_s3)
    recreated = UnityTable(location=f"s3://{s3_bucket}/new", table_id="new", managed=True)
    unity.add("main.s.t", recreated)
    with pytest.raises(CatalogError, match="now states another location than") as caught:
        store.put_if_absent("a", b"x")
    assert "run again" in str(caught.value) and not caught.value.retryable


def test_a_catalog_that_is_down_is_reported_as_such(
    unity: UnityServer, on_s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    store = _open(on_s3)
    unity.status = 503
    with pytest.raises(CatalogUnavailableError, match="cannot answer at present"):
        store.stat("a")


def test_own_credentials_take_precedence(
    unity: UnityServer, s3_server: S3Server, on_s3: dict[str, str]
) -> None:
    s3_server.intercept = None
    for options in (s3_server.storage_options | unity.options,):
        assert _open(options).stat("a") is None
    assert unity.vended() == []


def test_the_reference_concerns_the_table_alone(unity: UnityServer, on_s3: dict[str, str]) -> None:
    located = locate(_NAME, on_s3, environment={})
    report = Address.parse(located.address.replace("/t", "/reports"))
    options = parse_options(report, located.storage_options)
    assert options is not None
    assert options.public() == {"endpoint_url": on_s3["AWS_ENDPOINT_URL"], "region": "us-east-1"}


def test_tables_never_share_vended_credentials(unity: UnityServer, on_s3: dict[str, str]) -> None:
    unity.add("main.s.u", UnityTable(location="s3://elsewhere/u", table_id="other"))
    clients = SharedClients()
    options = [locate(f"uc://main.s.{name}", on_s3, environment={}) for name in "tu"]
    one, other = (clients.of(Address.parse(o.address), o.storage_options) for o in options)
    assert one is not other
    again = clients.of(Address.parse(options[0].address), options[0].storage_options)
    assert again is one


def test_google_takes_a_token(
    unity: UnityServer, gcs_server: GCSServer, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_maintenance.catalogs.credentials._PAUSE", timedelta(0))
    unity.add("main.s.t", UnityTable(location=f"gs://{gcs_bucket}/t"))
    unity.config = lambda key, _: {"gcs.oauth-token": key.session}
    store = _open({**gcs_server.storage_options, **unity.options})
    assert store.stat("a") is None
    assert store.put_if_absent("a", b"x") is Put.DONE
    assert store.read("a") == b"x"
    assert {*gcs_server.tokens} == {"Bearer canarySession1", "Bearer canarySession2"}
    assert unity.vended() == ["READ", "READ_WRITE"]


class _Session:
    """Records the addresses of requests."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Mapping[str, str]]] = []

    def send(self, method: str, url: str, headers: Mapping[str, str], body: object) -> Answer:
        self.sent.append((method, url, headers))
        return Answer(status=200, headers={"Content-Length": "0"}, body=b"")

    def close(self) -> None:
        pass


def test_azure_takes_a_signature(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "abfss://lake@acc.dfs.core.windows.net/t"
    unity.add("main.s.t", UnityTable(location=address))
    unity.config = lambda key, _: {"azure.sas-token": f"sv=1&sig={key.session}"}
    located = locate(_NAME, unity.options, environment={})
    store: Any = open_store(located.address, located.storage_options)
    session = store._bucket._client._session = _Session()
    client: AzureClient = store._bucket._client
    client.call("HEAD", "t/a")
    client.call("PUT", "t/a")
    assert [url.partition("?")[2] for _, url, _ in session.sent] == [
        "sv=1&sig=canarySession1",
        "sv=1&sig=canarySession2",
    ]
    assert unity.vended() == ["READ", "READ_WRITE"]
    assert not any("Authorization" in headers for _, _, headers in session.sent)
