"""One table has one entry, one lease and one name, however it was named."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance import open_table
from delta_maintenance.address import Address, place_of
from delta_maintenance.errors import BusyError, InvalidRequestError
from delta_maintenance.policies import AssessmentEntry, AssessmentStore, LastRun, assess_table
from delta_maintenance.policies.approval import PutOff
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.discovery import discover
from delta_maintenance.policies.leases import Leases
from delta_maintenance.storage import MemoryStore
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.assessed_tables import NOW, assessment, health, run_result, waiting
from tests.support.tables.table_builder import TableBuilder

SEGMENTS = st.text(
    st.characters(exclude_characters="/#?@:\0", codec="utf-8"), min_size=1, max_size=6
).filter(lambda text: text not in (".", ".."))
NAMES = st.text(max_size=9).map("a {}".format)
ORDERS = "s3://lake/bronze/orders"


@st.composite
def spellings(draw: st.DrawFn, *, usual: bool = False) -> tuple[str, str]:
    """Two forms of the address of one table; with `usual`, only those that people write."""
    path = "/".join(draw(st.lists(SEGMENTS, min_size=1, max_size=4)))

    def escaped() -> str:
        """The path with some characters escaped, as programs differ in which they escape."""
        kept = draw(st.sets(st.sampled_from(path), max_size=3)) - {"%"}
        return "".join(c if c in kept else quote(c) for c in path)

    if draw(st.booleans()):
        forms = [f"/{path}", f"file:///{quote(path)}", f"file:/{quote(path)}"]
        odd = [f"/x/..//{path}", f"file:///{escaped()}", f"file:/{escaped()}"]
    else:
        kinds = [("s3", "s3a", "s3n"), ("gs", "gcs"), ("abfss", "abfs"), ("hdfs", "webhdfs")]
        forms = [f"{scheme}://lake/{path}" for scheme in draw(st.sampled_from(kinds))]
        odd = [each.replace("s3:", "S3:") for each in forms]
    forms += [] if usual else odd
    form = st.tuples(st.sampled_from(forms), st.sampled_from(["", "/"])).map("".join)
    return draw(form), draw(form)


@given(spellings(), NAMES)
def test_all_forms_of_an_address_lead_to_one_entry_and_one_lease(
    forms: tuple[str, str], name: str
) -> None:
    first, second = forms
    store = AssessmentStore(f"memory://assessments-{uuid4()}")
    store.save(assessment(name, uri=first), run_result(name))
    store.save(assessment(name, uri=second))
    (entry,) = store.load_all()
    assert isinstance(entry, AssessmentEntry) and entry.last_runs == run_result().last_runs
    assert store.load(first) == store.load(second) is not None
    leases = Leases(MemoryStore())
    with (
        leases.held(name, uri=first, holder="a"),
        pytest.raises(BusyError),
        leases.held(name, uri=second, holder="b"),
    ):
        pass


def test_a_table_that_moved_is_known_by_its_new_address() -> None:
    store = AssessmentStore(f"memory://assessments-{uuid4()}")
    # Whichever address comes first in a listing.
    moves = {
        "orders": ("s3://a/orders", "s3://z/orders"),
        "lines": ("s3://z/lines", "s3://a/lines"),
    }
    for name, uris in moves.items():
        for hour, uri in enumerate(uris):
            store.save(assessment(name, uri=uri, assessed_at=NOW + timedelta(hours=hour)))
    new = {name: uri for name, (_, uri) in moves.items()}
    assert {each.name: each.assessment.uri for each in shown(store)} == new
    for name, uri in new.items():
        entry = store.find_by_name(name)
        assert isinstance(entry, AssessmentEntry) and entry.assessment.uri == uri


def shown(store: AssessmentStore) -> list[AssessmentEntry]:
    return [each for each in store.load_all() if isinstance(each, AssessmentEntry)]


@given(spellings(), st.booleans())
def test_a_table_has_the_name_that_its_pattern_gives_it_in_every_form(
    forms: tuple[str, str], with_name: bool
) -> None:
    first, second = (form.rstrip("/") for form in forms)
    try:
        root = str(Address.parse(first).parent)
    except InvalidRequestError:
        return
    # Patterns are text, in which wildcards have a meaning.
    if any(wild in root for wild in "*?") or root in ("/", "file:///") or "/.." in first:
        return
    entry = {"pattern": f"{root}/**", **({"name": "lake"} if with_name else {})}
    policy = Policy.from_json({"version": 1, "tables": [entry]})
    table, other = policy.table_at(first), policy.table_at(second)
    assert (table.name, table.uri) == (other.name, other.uri)
    assert policy.has_table_at(second) and table.answers_to(second)
    assert policy.address_of(table.name) == table.uri
    assert table.name.startswith("lake/") == with_name


def test_discovery_and_the_policy_agree_on_names(tmp_path: Path) -> None:
    for folder in ("bronze/orders", "bronze/users", "silver"):
        TableBuilder(tmp_path / folder).commit([protocol(), metadata()])
    tables = [
        {"name": "lake", "pattern": f"{tmp_path}/bronze/**"},
        {"pattern": f"{tmp_path}/*"},
        {"name": "mine", "uri": f"{tmp_path}/bronze/users"},
        {"name": "again", "uri": f"file://{tmp_path}/bronze/users/"},
    ]
    policy = Policy.from_json({"version": 1, "tables": tables})
    found = discover(policy)
    assert {table.name for table in found.tables} == {"mine", "lake/orders", "silver"}
    assert [each.name for each in found.duplicates] == ["again"], "one table has one entry"
    for table in found.tables:
        assert policy.table_at(f"file://{table.uri}/").name == table.name
        assert policy.address_of(table.name) == table.uri
    assert policy.address_of("lake/orders/x/../y") != f"{tmp_path}/bronze/orders"
    assert policy.address_of("unknown/orders") is None
    assert not policy.has_table_at(f"{tmp_path}/bronze/../../x")


def test_the_state_of_a_replaced_table_is_not_that_of_the_new_one(tmp_path: Path) -> None:
    store = AssessmentStore(str(tmp_path))
    asked, run = waiting("orders")
    store.save(asked, run)
    known = store.load(asked.uri)
    assert isinstance(known, AssessmentEntry)
    (plan,) = known.pending
    snoozed = PutOff(operation="vacuum", answer="snoozed", at=NOW, until=NOW + timedelta(days=1))
    store.put_off(plan, snoozed)
    store.save(replace(asked, status="failed", health=None))
    kept = store.load(asked.uri)
    assert isinstance(kept, AssessmentEntry) and kept.run is not None and kept.put_off
    store.save(replace(asked, health=health(asked.uri, table_id="another")))
    new = store.load(asked.uri)
    assert isinstance(new, AssessmentEntry)
    assert (new.run, new.last_runs, new.history) == (None, (), ())
    assert (new.pending, new.put_off, new.last_health) == ((), (), None)


def test_the_last_runs_on_another_table_at_the_address_do_not_count(tmp_path: Path) -> None:
    TableBuilder(tmp_path / "t").commit([protocol(), metadata()])
    table = open_table(str(tmp_path / "t"))
    policy = Policy.from_json(
        {"version": 1, "tables": [{"uri": table.uri, "fsck": {"every": "9 days"}}]}
    ).named_tables[0]
    run = LastRun(operation="fsck", at=NOW, version=0, status="sound")

    def is_due(table_id: str | None) -> bool:
        runs = (replace(run, table_id=table_id),)
        assessed = assess_table(table, policy, now=NOW + timedelta(days=1), last_runs=runs)
        return [each.operation for each in assessed.due] == ["fsck"]

    assert not is_due(None) and not is_due(table.snapshot().metadata.id)
    assert is_due("another")


def test_a_name_in_a_catalog_survives_a_run_by_address(tmp_path: Path) -> None:
    store = AssessmentStore(str(tmp_path))
    store.save(assessment("uc://main.sales.orders", uri=ORDERS))
    store.save(assessment(ORDERS, uri=ORDERS), run_result(ORDERS))
    (entry,) = store.load_all()
    assert isinstance(entry, AssessmentEntry) and entry.run is not None
    assert entry.name == "uc://main.sales.orders"


def test_a_link_to_a_table_shares_its_lease(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    leases = Leases(MemoryStore())
    with (
        leases.held("t", uri=str(tmp_path / "t"), holder="a"),
        pytest.raises(BusyError, match="a is working on linked"),
        leases.held("linked", uri=str(tmp_path / "link"), holder="b"),
    ):
        pass


def test_stores_that_only_fsspec_knows_are_places_of_their_own() -> None:
    assert place_of("oss://lake/t") != place_of("cos://lake/t")
    assert place_of("oss://lake/t/") == place_of("oss://lake/t")
