"""The catalog of AWS Glue: botocore's real calls to an emulator, and pages and failures that the
emulator does not have.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogListing, PassedOver
from delta_maintenance.catalogs.glue import GlueCatalog
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, InvalidRequestError
from tests.support.catalogs.names import AWKWARD
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse

pytestmark = pytest.mark.server

SECRET = "secret-of-the-test"
Answer = tuple[int, dict[str, Any]]


def opened(url: str, catalog: str | None = None) -> GlueCatalog:
    options = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": SECRET}
    found = GlueCatalog(
        CatalogSettings(kind=CatalogKind.GLUE, address=url, catalog=catalog, options=options)
    )
    found._client._pauses = (0.0, 0.0)
    return found


@pytest.fixture
def glue(s3_server: S3Server) -> Iterator[GlueCatalog]:
    """The emulator, which serves every service of AWS."""
    with opened(s3_server.url) as catalog:
        yield catalog


@pytest.fixture
def database(glue: GlueCatalog) -> str:
    name = f"db_{uuid.uuid4().hex}"
    glue._client._client.create_database(DatabaseInput={"Name": name})
    return name


def create(glue: GlueCatalog, database: str, name: str, **table: Any) -> None:
    entry = delta_table(name) | table
    glue._client._client.create_table(DatabaseName=database, TableInput=entry)


def delta_table(name: str) -> dict[str, Any]:
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"spark.sql.sources.provider": "delta", "EXTERNAL": "TRUE"},
        "StorageDescriptor": {"Location": f"s3://lake/{quote(name)}"},
    }


def listed(glue: GlueCatalog, *databases: str) -> CatalogListing:
    return glue.list(
        leads_to=lambda parts: not databases or parts[-1] in databases,
        includes=lambda parts: not parts[-1].startswith("tmp_"),
        known_tables={},
    )


def test_delta_tables_are_told_from_others(glue: GlueCatalog, database: str) -> None:
    create(glue, database, "spark", Owner="team-a", Description="orders")
    placeholder = {"Location": "s3://lake/x-__PLACEHOLDER__"}
    of_spark = placeholder | {"SerdeInfo": {"Parameters": {"path": "s3://lake/a b%20c"}}}
    create(glue, database, "external", StorageDescriptor=of_spark)
    create(glue, database, "athena", Parameters={"table_type": "DELTA", "tier": "gold"})
    create(glue, database, "iceberg", Parameters={"table_type": "ICEBERG"})
    create(glue, database, "hive", Parameters={"classification": "parquet"})
    create(glue, database, "view", TableType="VIRTUAL_VIEW", Parameters={})
    create(glue, database, "tmp_1")
    create(glue, database, "nowhere", StorageDescriptor=placeholder)
    found = listed(glue, database)
    tables = {table.name.table: table for table in found.tables}
    assert list(tables) == ["athena", "external", "spark"]
    assert tables["external"].location == "s3://lake/a b%20c"
    assert tables["athena"].tags == {"tier": "gold"}
    assert (tables["spark"].owner, tables["spark"].comment) == ("team-a", "orders")
    assert found.passed_over == {
        PassedOver.OTHER_FORMAT: 2,
        PassedOver.VIEW: 1,
        PassedOver.NOT_IN_POLICY: 1,
    }
    assert [failure.where for failure in found.failures] == [f"glue://{database}.nowhere"]
    for table in found.tables:
        assert glue.resolve(table.name) == table


def test_what_glue_does_not_know_is_refused(glue: GlueCatalog, database: str) -> None:
    with pytest.raises(CatalogError, match="does not know glue://") as caught:
        glue.resolve(CatalogName.parse(f"glue://{database}.absent"))
    assert not isinstance(caught.value, CatalogUnavailableError)
    create(glue, database, "iceberg", Parameters={"table_type": "ICEBERG"})
    with pytest.raises(CatalogError, match="no Delta table"):
        glue.resolve(CatalogName.parse(f"glue://{database}.iceberg"))


def test_the_check_sends_one_request(glue: GlueCatalog, s3_server: S3Server) -> None:
    assert glue.check() == "Glue answers"
    assert len(s3_server.requests) == 1


# What the emulator does not have.


def answering(handle: Callable[[str, dict[str, Any]], Answer]) -> Callable[[Any], Application]:
    """An application that answers the methods of Glue with statuses and documents."""

    def application(environ: Environ, start_response: StartResponse) -> list[bytes]:
        method = environ["HTTP_X_AMZ_TARGET"].rpartition(".")[2]
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        status, document = handle(method, json.loads(body))
        data = json.dumps(document).encode()
        headers = [("Content-Type", "application/x-amz-json-1.1")]
        start_response(f"{status} .", [*headers, ("Content-Length", str(len(data)))])
        return [data]

    return lambda _: application


def paged(
    databases: dict[str, list[str]], *, empty: bool = False
) -> Callable[[str, dict[str, Any]], Answer]:
    """Answers in pages of 100, as Glue does; with `empty`, every second page is empty. Also finds
    one table.
    """

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        if method == "GetTable":
            known = asked["Name"] in databases[asked["DatabaseName"]]
            found = {"Table": delta_table(asked["Name"])}
            return (200, found) if known else refused("EntityNotFoundException")
        assert asked["MaxResults"] <= 100
        names = list(databases) if method == "GetDatabases" else databases[asked["DatabaseName"]]
        at, half = map(int, asked.get("NextToken", "0:0").split(":"))
        if empty and not half:
            return 200, {"NextToken": f"{at}:1"}
        page, rest = names[at : at + 100], names[at + 100 :]
        entries = (
            ("DatabaseList", [{"Name": name} for name in page])
            if method == "GetDatabases"
            else ("TableList", [delta_table(name) for name in page])
        )
        return 200, dict([entries]) | ({"NextToken": f"{at + 100}:0"} if rest else {})

    return handle


def refused(code: str, status: int = 400) -> Answer:
    return status, {"__type": code, "Message": f"the key {SECRET} is of no use"}


def test_5000_tables_take_a_request_for_100_each(glue: GlueCatalog, s3_server: S3Server) -> None:
    databases = {f"db{number}": [f"t{at}" for at in range(1000)] for number in range(5)}
    s3_server.intercept = answering(paged(databases))
    found = listed(glue)
    assert len(found.tables) == 5000
    assert found.requests == len(s3_server.requests) == 1 + 50


def test_empty_pages_do_not_end_a_listing(glue: GlueCatalog, s3_server: S3Server) -> None:
    s3_server.intercept = answering(paged({"db": [f"t{at}" for at in range(250)]}, empty=True))
    assert len(listed(glue).tables) == 250


def test_a_page_that_names_itself_ends_the_database(glue: GlueCatalog, s3_server: S3Server) -> None:
    def handle(method: str, asked: dict[str, Any]) -> Answer:
        if method == "GetDatabases":
            return 200, {"DatabaseList": [{"Name": "db"}]}
        return 200, {"TableList": [delta_table("t")], "NextToken": "same"}

    s3_server.intercept = answering(handle)
    [failure] = listed(glue).failures
    assert failure.where == "glue://db" and "names itself" in str(failure.error)


def test_pages_without_end_are_not_followed_for_ever(
    glue: GlueCatalog, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_maintenance.catalogs.glue._MOST_PAGES", 5)
    numbers = itertools.count()

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        if method == "GetDatabases":
            return 200, {"DatabaseList": [{"Name": "db"}]}
        return 200, {"TableList": [], "NextToken": f"{next(numbers)}"}

    s3_server.intercept = answering(handle)
    [failure] = listed(glue).failures
    assert failure.where == "glue://db" and "more than 5 pages" in str(failure.error)
    assert next(numbers) == 5


@pytest.mark.parametrize("location", ["../../etc", "s3://key:secret-canary@lake/t", "zip://a::b"])
def test_an_unusable_location_hides_no_other(
    glue: GlueCatalog, s3_server: S3Server, location: str
) -> None:
    bad = delta_table("bad") | {"StorageDescriptor": {"Location": location}}
    pages = paged({"db": ["t"]})

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        status, body = pages(method, asked)
        body.get("TableList", []).append(bad)
        return status, body

    s3_server.intercept = answering(handle)
    listing = listed(glue)
    assert [table.name.table for table in listing.tables] == ["t"]
    [failure] = listing.failures
    assert "unusable location" in str(failure.error)
    assert "canary" not in str(failure.error)


@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [("AccessDeniedException", 400, False), ("InternalServiceException", 500, True)],
)
def test_a_broken_database_hides_no_other(
    glue: GlueCatalog, s3_server: S3Server, code: str, status: int, retryable: bool
) -> None:
    pages = paged({name: [f"t{at}" for at in range(150)] for name in ("a", "closed", "z")})

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        if asked.get("DatabaseName") == "closed" and "NextToken" in asked:
            return refused(code, status)
        return pages(method, asked)

    s3_server.intercept = answering(handle)
    found = listed(glue)
    assert len(found.tables) == 150 + 100 + 150
    [failure] = found.failures
    assert failure.where == "glue://closed"
    assert (failure.error.retryable, failure.error.exit_status) == (retryable, 3)
    assert code in str(failure.error) and SECRET not in str(failure.error)


def test_throttling_is_waited_for(glue: GlueCatalog, s3_server: S3Server) -> None:
    pages, throttled = paged({"db": ["t"]}), []

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        if len(throttled) < 2:
            throttled.append(method)
            return refused("ThrottlingException")
        return pages(method, asked)

    s3_server.intercept = answering(handle)
    found = listed(glue)
    assert len(found.tables) == 1
    assert found.requests == 4


def test_a_refused_key_is_final_and_stays_secret(glue: GlueCatalog, s3_server: S3Server) -> None:
    s3_server.intercept = answering(lambda method, asked: refused("UnrecognizedClientException"))
    with pytest.raises(CatalogError, match="check credentials and address") as caught:
        listed(glue)
    assert not isinstance(caught.value, CatalogUnavailableError)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert len(s3_server.requests) == 1


def test_the_catalog_id_is_sent_and_part_of_names(s3_server: S3Server) -> None:
    pages, asked_for = paged({"db": ["t"]}), set()

    def handle(method: str, asked: dict[str, Any]) -> Answer:
        asked_for.add(asked.get("CatalogId"))
        return pages(method, asked)

    s3_server.intercept = answering(handle)
    with opened(s3_server.url, "123456789012") as catalog:
        [table] = listed(catalog).tables
        assert catalog.resolve(table.name) == table
        assert asked_for == {"123456789012"}
        named = CatalogName.parse("glue://999999999999.db.t")
        assert catalog.resolve(named).name == named
    assert str(table.name) == "glue://123456789012.db.t"
    # A name with a first part names the catalog.
    assert asked_for == {"123456789012", "999999999999"}


def test_the_region_is_that_of_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    settings = CatalogSettings(kind=CatalogKind.GLUE, address=s3_server.url)
    with GlueCatalog(settings) as catalog:
        assert catalog._client._client.meta.region_name == "eu-north-1"


def test_missing_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(InvalidRequestError, match="NoRegionError"):
        GlueCatalog(CatalogSettings(kind=CatalogKind.GLUE))
    with pytest.raises(InvalidRequestError, match="no option 'token'"):
        GlueCatalog(CatalogSettings(kind=CatalogKind.GLUE, options={"token": SECRET}))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example([*AWKWARD])
@given(st.lists(st.text(min_size=1, max_size=255), min_size=1, max_size=8, unique=True))
def test_any_name_is_listed_and_resolved(s3_server: S3Server, texts: list[str]) -> None:
    s3_server.intercept = answering(paged({"d.b %": texts}))
    with opened(s3_server.url) as catalog:
        found = catalog.list(leads_to=lambda _: True, includes=lambda _: True, known_tables={})
        assert {table.name.parts for table in found.tables} == {("d.b %", text) for text in texts}
        for table in found.tables:
            assert catalog.resolve(CatalogName.parse(str(table.name))) == table
