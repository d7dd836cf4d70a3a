"""Kept versions: their names, and what vacuums and clean-ups keep for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.errors import InvalidRequestError, RefusedError, VersionNotFoundError
from delta_maintenance.operations import clean_log, keep_version
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.holds import Holders, KeptVersion
from delta_maintenance.operations.holds.kept_versions import (
    KEPT_VERSIONS,
    read_kept_versions,
    write_kept_version,
)
from delta_maintenance.operations.keep_version import KeepVersionOptions, KeepVersionResult
from delta_maintenance.table.read import Table
from tests.support.operations.log_clean_ups import build, clean, day, plan
from tests.support.tables.actions import add, remove
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago


def keep(table: TableBuilder, name: str, **options: Any) -> KeepVersionResult:
    """Keeps a version, or releases one."""
    context = RunContext.at(options.pop("now", NOW))
    snapshot = table.open().snapshot()
    planned = keep_version.plan(snapshot, KeepVersionOptions(name=name, **options), context)
    return keep_version.apply(Table(table.store), planned, context)


def store_name(table: TableBuilder, name: str, version: int) -> None:
    """Keeps a version of a table without data files."""
    write_kept_version(table.store, KeptVersion(name=name, version=version), made_at=NOW)


def replaced() -> Folder:
    """A table whose only file was replaced twice, long ago: versions 1, 2 and 3."""
    table = Folder()
    for version, path in enumerate(("a.parquet", "b.parquet", "c.parquet"), 1):
        before = [] if version == 1 else [f"{'abc'[version - 2]}.parquet"]
        removed = [remove(each, deletionTimestamp=days_ago(39)) for each in before]
        table.log(add(path), *removed, days=39)
        table.file(path)
    return table


def test_a_vacuum_keeps_the_files_of_a_kept_version_until_it_ends_or_is_released() -> None:
    table = replaced()
    assert table.going() == {"a.parquet", "b.parquet"}
    keep(table, "audit", keep=1, until=NOW + timedelta(days=3), why="for the auditors")
    keep(table, "model", keep=2)
    planned = table.survey(ignore_missing_files=True).plan
    assert planned.files == 0
    held = {each.holder: (each.files, each.bytes, each.why) for each in planned.held}
    assert held == {
        "kept version audit": (1, 1, "for the auditors"),
        "kept version model": (1, 1, None),
    }
    table.now = NOW + timedelta(days=3)
    assert table.going() == {"a.parquet"}
    assert any("audit ended" in note for note in table.survey().plan.notes)
    assert keep(table, "model", release=True).status == "released"
    assert table.going() == {"a.parquet", "b.parquet"}
    assert keep(table, "model", release=True).status == "nothing-to-do"


def test_the_options_of_a_vacuum_hold_versions_too() -> None:
    table = replaced()
    by_version = Holders(keep=(KeptVersion(name="audit", version=1),))
    assert table.going(holders=by_version) == {"b.parquet"}
    by_time = Holders(keep=(KeptVersion(name="audit", timestamp=NOW - timedelta(days=60)),))
    assert table.going(holders=by_time) == {"a.parquet", "b.parquet"}


def test_a_version_kept_during_a_vacuum_stops_it() -> None:
    table = replaced()
    surveyed = table.survey()
    keep(table, "audit", keep=1)
    with pytest.raises(RefusedError, match="now kept as audit; plan again"):
        table.vacuum(surveyed)
    assert table.files() == {"a.parquet", "b.parquet", "c.parquet"}


def test_a_clean_up_keeps_the_log_of_the_oldest_kept_version() -> None:
    table = build()
    for version in (9, 14, 18):
        table.checkpoint(version)
    store_name(table, "audit", 12)
    store_name(table, "model", 17)
    planned = plan(table, day(51))
    assert (planned.cut_off_commit, planned.oldest_version) == (12, 9)
    # Versions 12 to 19, and the checkpoints of 14 and 18.
    assert [(each.holder, each.files >= 8) for each in planned.held] == [
        ("kept version audit", True),
        ("kept version model", False),
    ]
    clean(table, day(51))
    for version in (9, 12, 17, 20):
        assert table.open().snapshot(version=version).version == version
    keep(table, "audit", release=True)
    assert plan(table, day(51)).oldest_version == 14


def test_a_version_kept_during_a_clean_up_stops_it() -> None:
    table = build()
    table.checkpoint(18)
    context = RunContext.at(day(51))
    planned = clean_log.plan(table.open().snapshot(), context=context)
    store_name(table, "audit", 3)
    with pytest.raises(RefusedError, match="plan again"):
        clean_log.apply(Table(table.store), planned, context)
    assert table.open().snapshot(version=3).version == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "cannot be understood"),
        (b"[" * 100_000, "cannot be understood"),
        (b'{"name": "other", "version": 1}', "cannot be understood"),
        (b'{"name": "audit", "version": 1, "colour": 1}', "cannot be understood"),
        (b'{"name": "audit"}', "cannot be understood"),
        (b'{"name": "audit", "version": 1, "version": 4}', "cannot be understood"),
        (b'{"name": "audit", "version": 77}', "audit cannot be opened"),
    ],
)
def test_nothing_is_deleted_for_a_kept_version_that_cannot_be_served(
    content: bytes, problem: str
) -> None:
    table = replaced()
    table.store.put(f"{KEPT_VERSIONS}/audit.json", content)
    with pytest.raises(RefusedError, match=problem):
        table.survey()
    cleaned = build()
    cleaned.checkpoint(18)
    cleaned.store.put(f"{KEPT_VERSIONS}/audit.json", content)
    with pytest.raises(RefusedError, match=problem):
        plan(cleaned, day(51))


def test_contradictory_keeps_are_refused() -> None:
    table = replaced()
    keep(table, "audit", keep=1)
    holders = Holders(keep=(KeptVersion(name="audit", version=2),))
    with pytest.raises(RefusedError, match="version 2 and version 1 are both kept as audit"):
        table.survey(holders=holders)
    with pytest.raises(RefusedError, match="version 1 is kept as audit; choose another name"):
        keep(table, "audit", keep=2)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({}, "has neither a version nor a time"), ({"version": 1, "timestamp": NOW}, "has both")],
)
def test_a_holder_keeps_a_version_or_a_time(given: Any, problem: str) -> None:
    holders = Holders(keep=(KeptVersion(name="audit", **given),))
    with pytest.raises(InvalidRequestError, match=f"kept version audit {problem}"):
        replaced().survey(holders=holders)


def test_a_name_that_another_process_has_just_given_is_not_replaced() -> None:
    table = replaced()
    context = RunContext.at(NOW)
    options = KeepVersionOptions(name="audit", keep=1)
    planned = keep_version.plan(table.open().snapshot(), options, context)
    store_name(table, "audit", 1)
    assert keep_version.apply(Table(table.store), planned, context).status == "nothing-to-do"
    keep(table, "audit", release=True)
    store_name(table, "audit", 2)
    with pytest.raises(RefusedError, match="another process has just kept"):
        keep_version.apply(Table(table.store), planned, context)


def test_the_end_and_the_purpose_of_a_kept_version_can_be_changed() -> None:
    table = replaced()
    keep(table, "audit", keep=1)
    later = NOW + timedelta(days=9)
    assert keep(table, "audit", until=later, why="again").status == "kept"
    assert read_kept_versions(table.store) == (
        KeptVersion(name="audit", version=1, until=later, why="again"),
    )
    assert keep(table, "audit", keep=1, until=later, why="again").status == "nothing-to-do"
    planned = keep_version.plan(
        table.open().snapshot(), KeepVersionOptions(name="audit"), RunContext.at(NOW)
    )
    assert planned.kept.until is None
    assert planned.reason.endswith(f"; before, audit, version 1, until {clock.text(later)}, again")


def test_versions_that_cannot_be_kept_are_refused_and_leave_no_name() -> None:
    table = replaced()
    with pytest.raises(VersionNotFoundError):
        keep(table, "audit", keep=77)
    with pytest.raises(InvalidRequestError, match="in the past"):
        keep(table, "audit", until=NOW)
    with pytest.raises(InvalidRequestError, match="begin with a letter"):
        keep(table, "../audit", keep=1)
    context = RunContext.at(NOW)
    planned = keep_version.plan(
        table.open().snapshot(), KeepVersionOptions(name="audit", keep=1), context
    )
    table.vacuum(table.survey())
    with pytest.raises(RefusedError, match="have been deleted"):
        keep_version.apply(Table(table.store), planned, context)
    with pytest.raises(RefusedError, match="have been deleted"):
        keep(table, "audit", keep=1)
    assert read_kept_versions(table.store) == ()


def test_the_plan_says_from_when_on_delta_spark_refuses_the_version() -> None:
    table = replaced()
    for until, refuses in ((NOW - timedelta(days=34), False), (NOW + timedelta(days=3), True)):
        options = KeepVersionOptions(name="audit", keep=1, until=until)
        planned = keep_version.plan(
            table.open().snapshot(), options, RunContext.at(NOW - timedelta(days=39))
        )
        notes = [note for note in planned.notes if "Delta Spark 4.4 refuses" in note]
        assert bool(notes) == refuses
        assert all(f"from {NOW - timedelta(days=32):%Y-%m-%d}" in note for note in notes)
