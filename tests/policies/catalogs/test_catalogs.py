"""From the names in catalogs to tables: what is found, with whose rules, and what fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogTable, PassedOver
from delta_maintenance.errors import (
    CatalogError,
    CatalogUnavailableError,
    InvalidRequestError,
    StorageError,
)
from delta_maintenance.policies import AssessmentStore
from delta_maintenance.policies.catalogs import CatalogMemory, table_named
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.definition.patterns import NamePattern
from delta_maintenance.policies.discovery import Discovery, discover, environment_options
from delta_maintenance.policies.session import kept_tables
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs

NOW = datetime(2026, 11, 26, tzinfo=UTC)
SALES = (
    catalog_table(
        "uc://prod.sales.orders",
        "s3://lake/orders",
        owner="team-a",
        tags={"tier": "gold"},
        comment="All orders.",
        table_id="id-1",
    ),
    catalog_table("uc://prod.sales.tmp_1", "s3://lake/tmp", owner="team-b"),
    catalog_table(
        "uc://prod.hr.people", "s3://lake/people", owner="team-b", properties={"pii": "yes"}
    ),
)
Use = Callable[..., type[InMemoryCatalog]]


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch) -> Use:
    """A function that puts servers with their tables in place."""
    monkeypatch.setenv("LAKE_TOKEN", "dapi-canary")
    return lambda **servers: use_catalogs(
        monkeypatch, {f"https://{name}": tables for name, tables in servers.items()}
    )


def policy(*tables: Mapping[str, Any], **catalogs: Mapping[str, Any]) -> Policy:
    """A policy with a Unity Catalog `prod` under the key `lake`, unless others are given."""
    lake = {
        "kind": "unity",
        "address": "https://lake",
        "catalog": "prod",
        "options": {"token": "${env:LAKE_TOKEN}"},
    }
    document = {"version": 1, "catalogs": catalogs or {"lake": lake}, "tables": list(tables)}
    return Policy.from_json(document)


def found(document: Policy, **settings: Any) -> Discovery:
    return discover(document, pauses=(), **settings)


def test_tables_have_the_names_of_the_server(catalogs: Use) -> None:
    catalogs(lake=SALES)
    tables = found(policy({"catalog": "lake.**"})).complete()
    assert [table.name for table in tables] == [
        str(table.name) for table in sorted(SALES, key=lambda table: table.name)
    ]
    orders = next(table for table in tables if table.uri == "s3://lake/orders")
    assert orders.catalog_name == CatalogName(CatalogKind.UNITY, ("prod", "sales", "orders"))
    assert (orders.owner, orders.tags, orders.comment) == ("team-a", ("tier=gold",), "All orders.")


def test_patterns_exclusions_and_conditions_narrow_down(catalogs: Use) -> None:
    catalogs(lake=SALES)

    def names(**entry: Any) -> list[str]:
        discovery = found(policy({"catalog": "lake.**", **entry}))
        return [table.name.removeprefix("uc://prod.") for table in discovery.complete()]

    assert names(catalog="lake.sales.*") == ["sales.orders", "sales.tmp_1"]
    assert names(catalog="lake.*.o?ders") == ["sales.orders"]
    assert names(catalog="lake.sales.*", exclude=["lake.sales.tmp_*"]) == ["sales.orders"]
    assert names(exclude=["lake.sales"]) == ["hr.people"]
    assert names(where={"owner": "team-b"}) == ["hr.people", "sales.tmp_1"]
    assert names(where={"tags": {"tier": "gold"}}) == ["sales.orders"]
    assert names(where={"tags": {"tier": "*"}}) == ["sales.orders"]
    assert names(where={"tags": {"pii": "yes"}}) == ["hr.people"]
    assert names(where={"owner": "team-b", "tags": {"tier": "gold"}}) == []


def test_excluded_tables_are_counted(catalogs: Use) -> None:
    catalogs(lake=SALES)
    discovery = found(
        policy({"catalog": "lake.sales.*", "where": {"owner": "team-a"}, "exclude": ["lake.hr"]})
    )
    assert discovery.passed_over == {
        "catalogs.lake": {PassedOver.VIEW: 2, PassedOver.NOT_IN_POLICY: 1}
    }
    assert list(discovery.counts()) == [
        "catalogs.lake: passed over 1 (not in the policy), 2 (view)"
    ]


def test_rules_are_inherited_from_catalog_schema_pattern_and_table(catalogs: Use) -> None:
    catalogs(lake=SALES)
    lake = {
        "kind": "unity",
        "address": "https://lake",
        "catalog": "prod",
        "vacuum": {"every": "1 day", "retention": "10 days"},
        "checkpoint": {"max_commits": 1},
        "schemas": {
            "sales": {"vacuum": {"every": "2 days"}, "clean_log": True},
            "*": {"compact_log": True},
        },
    }
    entries = (
        {"catalog": "lake.sales.*", "checkpoint": {"max_commits": 3}},
        {"catalog": "lake.**"},
        {"catalog": "lake.sales.orders", "checkpoint": {"max_commits": 4}, "owner": "me"},
    )
    tables = {t.name.rpartition(".")[2]: t for t in found(policy(*entries, lake=lake)).tables}
    orders, temporary, people = tables["orders"], tables["tmp_1"], tables["people"]
    assert orders.rules.checkpoint.max_commits == 4
    assert orders.rules.vacuum.every.days == 2
    assert orders.rules.vacuum.retention.days == 10
    assert orders.rules.clean_log and not orders.rules.compact_log
    assert orders.owner == "me"
    assert temporary.rules.checkpoint.max_commits == 3
    assert people.rules.checkpoint.max_commits == 1
    assert people.rules.compact_log
    assert orders.rules_from == (
        "catalogs.lake",
        "catalogs.lake.schemas.sales",
        "lake.sales.*",
        "lake.sales.orders",
    )


def test_one_catalog_that_is_down_hides_no_other(catalogs: Use) -> None:
    server = catalogs(
        lake=SALES, glue=[catalog_table("glue://raw.events", "s3://raw/events")], hive=[]
    )
    server.broken["https://lake"] = CatalogUnavailableError("the catalog does not answer")
    server.broken["https://hive"] = CatalogError("the token is refused")
    document = policy(
        {"catalog": "lake.**"},
        {"catalog": "aws.raw.*"},
        {"catalog": "old.*.*"},
        lake={"kind": "unity", "address": "https://lake", "catalog": "prod"},
        aws={"kind": "glue", "address": "https://glue"},
        old={"kind": "hive", "address": "https://hive"},
    )
    discovery = found(document)
    assert [table.name for table in discovery.tables] == ["glue://raw.events"]
    assert {each.pattern: each.error.exit_status for each in discovery.unlisted} == {
        "catalogs.lake": 3,
        "catalogs.old": 3,
    }
    assert discovery.listed == ("catalogs.aws", "aws.raw.*")


def test_a_catalog_that_recovers_is_asked_again_after_a_pause(catalogs: Use) -> None:
    server = catalogs(lake=SALES)
    server.broken["https://lake"] = CatalogUnavailableError("the catalog does not answer")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        server.broken.clear()

    discovery = discover(policy({"catalog": "lake.**"}), pauses=(2.0, 8.0), sleep=sleep)
    assert len(discovery.complete()) == 3 and pauses == [2.0]


def test_a_schema_that_fails_hides_no_other(catalogs: Use, tmp_path: Any) -> None:
    server = catalogs(lake=SALES)
    store = AssessmentStore(str(tmp_path))
    memory = CatalogMemory(store.store)
    document = policy({"catalog": "lake.**"})
    assert len(found(document, memory=memory).complete()) == 3

    server.broken["uc://prod.hr"] = CatalogError("the right to list is missing")
    discovery = found(document, memory=memory)
    assert [t.name for t in discovery.tables] == ["uc://prod.sales.orders", "uc://prod.sales.tmp_1"]
    discovery.keep_failures(store, now=NOW)
    (stored,) = store.load_all()
    assert stored.name == "uc://prod.hr"

    server.broken.clear()
    found(document, memory=memory).keep_failures(store, now=NOW)
    assert store.load_all() == ()
    # The tables of the schema were remembered in spite of the failure.
    assert all(len(known) == 3 for known in server.known[1:])


def test_a_table_that_is_listed_twice_is_looked_after_once(catalogs: Use) -> None:
    catalogs(
        lake=SALES,
        hive=[
            catalog_table("hms://sales.orders", "s3a://lake/orders/"),
            catalog_table("hms://sales.same_id", "s3://elsewhere/copy", table_id="id-1"),
            catalog_table("hms://sales.other", "s3://lake/other"),
        ],
    )
    document = policy(
        {"uri": "s3://lake/people", "name": "people"},
        {"catalog": "lake.**"},
        {"catalog": "old.**"},
        lake={"kind": "unity", "address": "https://lake", "catalog": "prod"},
        old={"kind": "hive", "address": "https://hive"},
    )
    discovery = found(document)
    assert [t.name for t in discovery.complete()] == [
        "people",
        "uc://prod.sales.orders",
        "uc://prod.sales.tmp_1",
        "hms://sales.other",
    ]
    assert [(each.name, each.kept) for each in discovery.duplicates] == [
        ("uc://prod.hr.people", "people"),
        ("hms://sales.orders", "uc://prod.sales.orders"),
        ("hms://sales.same_id", "uc://prod.sales.orders"),
    ]


def test_known_tables_are_remembered_between_runs(catalogs: Use, tmp_path: Any) -> None:
    server = catalogs(lake=SALES)
    memory = CatalogMemory(AssessmentStore(str(tmp_path)).store)
    document = policy({"catalog": "lake.**"})
    found(document, memory=memory)
    assert memory.load("lake").by_name == {table.name: table for table in SALES}
    found(document, memory=memory)
    assert server.known == [frozenset(), frozenset(table.name for table in SALES)]
    # Opening one of them costs no request; any other is resolved.
    name = CatalogName.parse("uc://prod.sales.orders")

    def options(rule: Any, _: str) -> Mapping[str, str]:
        return environment_options(rule)

    known = table_named(document, name, storage_options=options, memory=memory)
    assert (known.uri, server.resolved) == ("s3://lake/orders", [])
    assert table_named(document, name, storage_options=options).rules == known.rules
    assert server.resolved == [name]
    with pytest.raises(InvalidRequestError, match="does not ask for uc://other"):
        table_named(document, CatalogName.parse("uc://other.s.t"), storage_options=options)


def test_a_table_with_vended_credentials_is_reached_through_its_catalog(catalogs: Use) -> None:
    vended = catalog_table("uc://prod.s.t", "s3://lake/t", vends_credentials=True)
    managed = catalog_table("uc://prod.s.m", "s3://lake/m", catalog_managed=True)
    catalogs(lake=[vended, managed])
    tables = {t.uri: t for t in found(policy({"catalog": "lake.**"})).complete()}
    rule = tables["s3://lake/t"].rules.storage
    assert rule.options == {
        "catalog_uri": "https://lake",
        "catalog_name": "prod",
        "catalog_token": "${env:LAKE_TOKEN}",
        "catalog_table": "uc://prod.s.t",
        "catalog_location": "s3://lake/t",
    }
    assert environment_options(rule)["catalog_token"] == "dapi-canary"
    assert tables["s3://lake/m"].rules.storage.options["catalog_managed"] == "true"
    assert tables["s3://lake/m"].rules.storage.options["catalog_access"] == "none"
    # The policy can say how the store is reached.
    entry = {"catalog": "lake.**", "storage": {"options": {"AWS_REGION": "eu-central-1"}}}
    tables = {t.uri: t for t in found(policy(entry)).complete()}
    assert tables["s3://lake/t"].rules.storage.options == {"AWS_REGION": "eu-central-1"}


def test_the_token_is_only_in_the_settings_of_the_client(catalogs: Use) -> None:
    server = catalogs(lake=SALES)
    discovery = found(policy({"catalog": "lake.**"}))
    assert server.opened[0].options["token"] == "dapi-canary"
    assert server.opened[0].catalog == "prod"
    assert "dapi-canary" not in repr(discovery)
    assert "dapi-canary" not in "".join(str(t.to_json()) for t in discovery.tables)


def test_a_variable_that_is_not_set_fails_only_its_catalog(
    catalogs: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogs(lake=SALES)
    monkeypatch.delenv("LAKE_TOKEN")
    (failed,) = found(policy({"catalog": "lake.**"})).unlisted
    assert failed.pattern == "catalogs.lake" and "LAKE_TOKEN is not set" in str(failed.error)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"catalog": "other.*"}, "starts with no key of `catalogs`"),
        ({"catalog": "lake.*", "exclude": ["other.*"]}, "starts with no key of `catalogs`"),
        ({"catalog": "lake"}, "starts with the key of a catalog"),
        ({"catalog": "lake..t"}, "starts with the key of a catalog"),
        ({"catalog": "lake.*", "uri": "/t"}, "a uri, a pattern or a catalog"),
        ({"catalog": "lake.*", "name": "t"}, "has its name there"),
        ({"uri": "/t", "where": {"owner": "a"}}, "only names in a catalog have conditions"),
        ({"uri": "uc://prod.s.t"}, "write `catalog: KEY.SCHEMA.TABLE`"),
        ({"uri": "/t", "name": "uc://prod.s.t"}, "give the address another name"),
    ],
)
def test_entries_that_make_no_sense_are_refused(entry: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        policy(entry)


@pytest.mark.parametrize("option", ["token", "client_secret", "password", "secret_access_key"])
def test_a_secret_in_the_policy_is_refused(option: str) -> None:
    with pytest.raises(InvalidRequestError, match="looks like a secret") as caught:
        policy(lake={"kind": "unity", "options": {option: "canary"}})
    assert "canary" not in str(caught.value)


def test_the_address_of_tokens_is_no_secret() -> None:
    options = {"token_address": "https://login/token", "client_id": "robot"}
    assert policy(lake={"kind": "polaris", "options": options}).catalogs["lake"].options == options


PARTS = st.text(min_size=1, max_size=255).filter(
    lambda part: part.isprintable() or part.strip() == part
)


@given(st.lists(PARTS, min_size=1, max_size=4), st.sampled_from([*CatalogKind]))
def test_any_name_matches_itself_in_a_pattern(parts: list[str], kind: CatalogKind) -> None:
    name = CatalogName(kind, ("lake", *parts))
    pattern = NamePattern(name.pattern_text)
    assert pattern.is_name and pattern.matches(parts)
    assert NamePattern("lake.**").matches(parts)
    assert NamePattern("lake" + ".*" * len(parts)).matches(parts)
    assert not NamePattern("lake" + ".*" * (len(parts) + 1)).matches(parts)
    assert all(pattern.leads_to(parts[:length]) for length in range(len(parts)))
    assert not pattern.leads_to(parts)


def test_a_nested_namespace_is_found(catalogs: Use) -> None:
    nested: CatalogTable = catalog_table("polaris://lake.a.b.t", "s3://lake/t")
    catalogs(lake=[nested])
    lake = {"kind": "polaris", "address": "https://lake", "schemas": {"a.b": {"vacuum": True}}}
    for pattern in ("lake.a.b.*", "lake.**.t", "lake.a.**", "lake.a.b.t"):
        (table,) = found(policy({"catalog": pattern}, lake=lake)).complete()
        assert table.rules.vacuum is not None
    assert found(policy({"catalog": "lake.a.*"}, lake=lake)).tables == ()


def test_an_entry_for_a_table_that_the_catalog_does_not_have_is_a_failure(
    catalogs: Use, tmp_path: Path
) -> None:
    server = catalogs(lake=[*SALES, catalog_table("uc://prod.sales.a%2Eb c", "s3://lake/a")])
    document = policy(
        {"catalog": "lake.sales.*"},
        {"catalog": "lake.sales.order", "vacuum": False},
        {"catalog": "lake.sales.orders", "where": {"owner": "nobody"}},
        {"catalog": "lake.sales.a%2Eb c"},
        {"catalog": "lake.hr.persons"},
    )
    store = AssessmentStore(str(tmp_path))
    memory = CatalogMemory(store.store)
    server.broken["uc://prod.hr"] = CatalogUnavailableError("the catalog does not answer")
    discovery = found(document, memory=memory)
    assert len(discovery.tables) == 3
    # Of a schema that cannot be listed, nobody knows.
    named = {each.pattern: str(each.error) for each in discovery.unlisted}
    assert named.keys() == {"uc://prod.hr", "uc://prod.sales.order"}
    assert named["uc://prod.sales.order"] == (
        "the catalog has no Delta table uc://prod.sales.order; correct the name in the policy, or "
        "remove it"
    )
    assert {each.error.exit_status for each in discovery.unlisted} == {3}
    # A table that is gone is not kept, and what was said of it is forgotten when it is back.
    lost = policy({"catalog": "lake.sales.order"}).table_in(
        "lake", catalog_table("uc://prod.sales.order", "s3://lake/order")
    )
    assert lost is not None and not kept_tables(document, discovery, [lost])
    server.broken.clear()
    back = catalog_table("uc://prod.sales.order", "s3://lake/order")
    server.tables["https://lake"][back.name] = back
    mended = found(document, memory=memory)
    assert "uc://prod.sales.order" in mended.listed
    assert [each.pattern for each in mended.unlisted] == ["uc://prod.hr.persons"]


def test_names_of_two_parts_that_the_catalog_does_not_have(catalogs: Use) -> None:
    catalogs(glue=[catalog_table("glue://raw.events", "s3://lake/events")])
    aws = {"kind": "glue", "address": "https://glue"}
    tables = ({"catalog": "aws.raw.events"}, {"catalog": "aws.raw.event"})
    discovery = found(policy(*tables, aws=aws))
    assert [each.pattern for each in discovery.unlisted] == ["glue://raw.event"]


def test_a_memory_that_cannot_be_written_hides_no_table(
    catalogs: Use, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogs(lake=SALES)
    store = AssessmentStore(str(tmp_path)).store

    def full(path: str, data: bytes) -> None:
        raise StorageError("cannot write: no space left", remedy="make room")

    monkeypatch.setattr(store, "put", full)
    discovery = found(policy({"catalog": "lake.sales.*"}), memory=CatalogMemory(store))
    assert [table.name for table in discovery.complete()] == [
        "uc://prod.sales.orders",
        "uc://prod.sales.tmp_1",
    ]
    assert "the listing of the catalog lake cannot be remembered" in caplog.text
