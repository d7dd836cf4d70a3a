"""`expire`: what it refuses and commits, and what other writers may do meanwhile."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, RefusedError
from delta_maintenance.operations import expire, keep_version
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.expire import ExpireOptions, ExpirePlan, ExpireResult, commits
from delta_maintenance.operations.expire.limit import limit_of
from delta_maintenance.operations.holds import Holders, Reader
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.policies.assess import assess
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.faults.every_fault import distinct_faults
from tests.support.faults.fault_store import FaultStore, SimulatedCrash
from tests.support.operations.fsck_runs import run as fsck_run
from tests.support.operations.row_ids import RacedStore
from tests.support.rewrites.data_files import (
    ROW_ID,
    ROW_TRACKING,
    ROW_VERSION,
    DataTable,
    field,
    inline_vector,
    schema_string,
)
from tests.support.rewrites.rewritten_tables import VECTORS, ids
from tests.support.rewrites.table_rows import actions_of, latest, live_adds, live_rows
from tests.support.suite.play import some
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.policy_tables import asked, only
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGE = timedelta(days=30)
FEATURES = ("deletionVectors", "rowTracking", "domainMetadata", "changeDataFeed", "appendOnly")
MIXED = ("leave", "deletion-vectors", "rewrite")
FIELDS = (field("n", "long"), field("t", "timestamp"), field("s", "string"), field("e", "long"))
FEED = {"delta.enableChangeDataFeed": "true"}


class Aged:
    """Files with old rows, with old and young ones, without statistics, and with young rows."""

    def __init__(self, store: Store | None = None, **configuration: str) -> None:
        self.table = DataTable(
            *FIELDS,
            store=store,
            features=FEATURES,
            configuration={**ROW_TRACKING, **VECTORS, **configuration},
        )
        self.store = self.table.store
        self.count = 0
        self.old = self.append(50, 40)
        self.mixed = self.append(50, 10, None, 31)
        self.unknown = self.append(60, 5, stats=None)
        self.old_without_statistics = self.append(60, stats=None)
        self.young = self.append(29, 0)

    def append(self, *ages: int | None, **fields: Any) -> str:
        """Adds a file with rows of these ages in days."""
        times = [None if age is None else NOW - timedelta(days=age) for age in ages]
        known = [time for time in times if time is not None]
        stats = {
            "numRecords": len(times),
            "minValues": {"t": text(min(known))},
            "maxValues": {"t": text(max(known))},
            "nullCount": {"t": len(times) - len(known)},
        }
        rows = pa.table(
            {
                "n": pa.array(range(self.count, self.count + len(ages)), pa.int64()),
                "t": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        self.count += len(ages)
        [path] = self.table.append(rows, **{"stats": json.dumps(stats), **fields})
        return path


def text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def planned(store: Store, **options: Any) -> ExpirePlan:
    asked = {"column": "t", "older_than": AGE, **options}
    return expire.plan(Table(store).snapshot(), ExpireOptions(**asked), RunContext.at(NOW))


def run(store: Store, *, seed: int = 7, **options: Any) -> ExpireResult:
    memory = getattr(store, "_store", store)
    if isinstance(memory, MemoryStore):
        memory.now_ms = lambda: epoch_millis(NOW)
    context = RunContext.at(NOW, sleep=lambda _: None, new_id=ids(seed))
    return expire.apply(Table(store), planned(store, **options), context)


def numbers(store: Store, version: int | None = None) -> set[int]:
    return {dict(values)["n"] for values, *_ in live_rows(store, version=version)}


def deleted_in_feed(store: Store) -> set[int]:
    """The rows that change data files show as deleted. Fails for a commit whose change data files
    show others than it deletes.
    """
    told = set()
    for version in range(1, latest(store) + 1):
        changes = [each["cdc"] for each in actions_of(store, version) if "cdc" in each]
        rows = [row for each in changes for row in change_rows(store, each)]
        if changes:
            before, after = numbers(store, version - 1), numbers(store, version)
            assert after <= before and sorted(row["n"] for row in rows) == sorted(before - after)
        told |= {row["n"] for row in rows}
    return told


def change_rows(store: Store, change: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a change data file, all of them deleted."""
    assert change["path"].startswith("_change_data/") and change["dataChange"] is False
    data = store.read(unquote(change["path"]))
    assert len(data) == change["size"]
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    assert {tuple(row) for row in rows} == {("n", "t", "s", "e", "_change_type")}
    assert {row["_change_type"] for row in rows} == {"delete"}
    return rows


def identities(store: Store) -> dict[int, tuple[Any, ...]]:
    """Row IDs and row commit versions by number."""
    found = live_rows(store, row_id=ROW_ID, row_version=ROW_VERSION)
    return {dict(values)["n"]: tuple(rest) for values, _, *rest in found}


ALL = set(range(11))
KEPT = {"leave": ALL - {0, 1}, "deletion-vectors": {3, 4, 7, 9, 10}, "rewrite": {3, 4, 7, 9, 10}}


@pytest.mark.parametrize("mixed", MIXED)
def test_old_rows_go_and_the_others_keep_their_identity(mixed: str) -> None:
    aged = Aged()
    before, version = identities(aged.store), latest(aged.store)
    plan = planned(aged.store, mixed=mixed)
    assert (plan.files, plan.rows, plan.mixed_files, plan.unknown_files) == (1, 2, 1, 2)
    result = run(aged.store, mixed=mixed)
    assert numbers(aged.store) == KEPT[mixed]
    assert result.rows == len(ALL) - len(KEPT[mixed])
    assert identities(aged.store) == {n: before[n] for n in KEPT[mixed]}
    counts = result.files, result.files_marked, result.files_rewritten, result.files_left
    assert (
        counts
        == {"leave": (1, 0, 0, 3), "deletion-vectors": (2, 2, 0, 0), "rewrite": (2, 0, 2, 0)}[mixed]
    )
    for number in range(version + 1, latest(aged.store) + 1):
        info = actions_of(aged.store, number)[0]["commitInfo"]
        assert info["operation"] == "DELETE"
        predicate = "[\"(t < TIMESTAMP '2025-12-02 12:00:00Z')\"]"
        assert info["operationParameters"] == {"predicate": predicate}
        files = [a.get("add") or a.get("remove") for a in actions_of(aged.store, number)]
        assert all(file["dataChange"] for file in files if file)
    if mixed == "deletion-vectors":
        assert planned(aged.store, mixed=mixed).is_noop
        stats = json.loads(live_adds(aged.store)[aged.mixed]["stats"])
        assert stats["tightBounds"] is False and stats["numRecords"] == 4


def test_a_file_is_not_read_if_its_bounds_decide() -> None:
    aged = Aged()
    for path in (aged.old, aged.young):
        aged.store.delete(path)
    assert run(aged.store, mixed="deletion-vectors").problem is None


@pytest.mark.parametrize(
    ("configuration", "mixed", "problem"),
    [
        ({"delta.appendOnly": "true"}, "leave", "append-only"),
        ({"delta.enableDeletionVectors": "false"}, "deletion-vectors", "deletion vectors"),
    ],
)
def test_a_table_that_forbids_it_is_refused(
    configuration: dict[str, str], mixed: str, problem: str
) -> None:
    aged = Aged(**configuration)
    version = latest(aged.store)
    with pytest.raises(RefusedError, match=problem) as refused:
        planned(aged.store, mixed=mixed)
    assert refused.value.remedy and refused.value.table
    assert latest(aged.store) == version


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"column": "x"}, "no column x", ": t$"),
        ({"column": "s"}, "of type string", ": t$"),
        ({"column": "e"}, "no unit", ": t$"),
        ({"column": "t", "unit": "ms"}, "a unit was given", "n, e$"),
        ({"time_zone": "Mars/Olympus"}, "not a time zone", "Europe/Berlin"),
        ({"time_zone": "../etc/passwd"}, "not a time zone", "Europe/Berlin"),
        ({"older_than": timedelta(0)}, "rows of the future", "400 days"),
        ({"older_than": timedelta(days=900_000)}, "exceeds the calendar", "shorter"),
    ],
)
def test_an_impossible_limit_is_refused(options: dict[str, Any], problem: str, remedy: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        planned(Aged().store, **options)
    assert problem in error.value.problem
    assert re.search(remedy, error.value.remedy or "")


@pytest.mark.parametrize(
    ("kind", "greatest", "sure"),
    [
        ("date", "1899-12-31", False),
        ("date", "1900-01-01", True),
        ("timestamp_ntz", "1899-12-31T23:59:59.999999", False),
        ("timestamp", "1972-12-31T23:59:59.998Z", False),
        ("timestamp", "1973-01-01T00:00:00.000Z", True),
    ],
)
def test_early_bounds_prove_nothing(kind: str, greatest: str, sure: bool) -> None:
    table = DataTable(field("t", kind), features=["timestampNtz"])
    stats = {"numRecords": 1, "minValues": {"t": greatest}, "maxValues": {"t": greatest}}
    table.append(pa.table({"t": [1]}), stats=json.dumps({**stats, "nullCount": {"t": 0}}))
    assert planned(table.store).files == sure


def test_the_limit_of_dates_is_that_of_the_zone_or_of_every_zone() -> None:
    table = DataTable(field("t", "date"))
    at = datetime(2025, 12, 2, 12, tzinfo=UTC)
    expected = {None: date(2025, 12, 1), "Pacific/Auckland": date(2025, 12, 3), "UTC": at.date()}
    for zone, day in expected.items():
        options = ExpireOptions(column="T", older_than=AGE, time_zone=zone)
        limit = limit_of(Table(table.store).snapshot(), options, at)
        assert limit.predicate == f"(t < DATE '{day}')"
        assert limit.value == (day - date(1970, 1, 1)).days


def test_a_file_that_cannot_be_read_stays_and_is_named() -> None:
    aged = Aged()
    aged.store.delete(aged.mixed)
    result = run(aged.store, mixed="deletion-vectors")
    assert result.status == "partly" and [each.path for each in result.skipped] == [aged.mixed]
    assert {aged.mixed, aged.unknown, aged.young} == set(live_adds(aged.store))


def test_a_plan_that_removes_most_files_needs_a_flag_and_says_if_it_empties_the_table() -> None:
    aged = Aged()
    assert planned(aged.store).large is None
    for _ in range(4):
        aged.append(50, 40)
    plan, version = planned(aged.store), latest(aged.store)
    assert "needs --allow-large-delete" in expire.RECORD.facts(plan) and "empty" not in plan.reason
    with pytest.raises(RefusedError, match=r"5 of 9 files would be .*give --allow-large-delete"):
        run(aged.store)
    assert latest(aged.store) == version
    plan = planned(aged.store, older_than=timedelta(hours=1), allow_large_delete=True)
    assert expire.RECORD.facts(plan)["needs --allow-large-delete"] is None
    assert run(aged.store, allow_large_delete=True).files == 5

    empty = Aged()
    for name in (empty.mixed, empty.unknown, empty.old_without_statistics, empty.young):
        empty.table.remove(name)
    assert planned(empty.store).reason.endswith(": the table is empty afterwards")
    with pytest.raises(RefusedError, match="all 1 file of the table would be removed"):
        run(empty.store)
    assert run(empty.store, allow_large_delete=True).rows == 2
    assert planned(empty.store).large is None


def test_the_plan_names_who_can_still_read_the_rows() -> None:
    aged = Aged()
    kept = KeepVersionOptions(name="audit")
    snapshot = Table(aged.store).snapshot()
    context = RunContext.at(NOW)
    keep_version.apply(Table(aged.store), keep_version.plan(snapshot, kept, context), context)
    notes = planned(aged.store).notes
    files = f"the files of version {latest(aged.store)} stay, with expired rows"
    assert f"held by kept version audit: {files}" in notes
    assert any("until a vacuum" in note for note in notes)


def append_old(aged: Aged) -> None:
    aged.append(90, 80)


def delete_row(aged: Aged) -> None:
    aged.table.delete(aged.mixed, [1])


def remove_old(aged: Aged) -> None:
    aged.table.remove(aged.old)


def compact(aged: Aged) -> None:
    aged.table.remove(aged.mixed, data_change=False)
    aged.append(50, 10, None, 31, dataChange=False)


@pytest.mark.parametrize("mixed", MIXED)
@pytest.mark.parametrize(
    ("race", "commit", "stays"),
    [
        (append_old, 0, {3, 4, 11, 12}),
        (append_old, 1, {3, 4, 11, 12}),
        (delete_row, 0, {4}),
        (delete_row, 1, {4}),
        (remove_old, 0, {3, 4}),
        (compact, 0, {11, 12, 13, 14}),
        (compact, 1, {11, 12, 13, 14}),
    ],
)
def test_rows_of_other_writers_stay_as_they_left_them(
    mixed: str, race: Callable[[Aged], None], commit: int, stays: set[int]
) -> None:
    store = RacedStore()
    aged = Aged(store)

    def meanwhile() -> None:
        aged.table.builder.commits.setdefault(latest(store), [])
        aged.table.continue_row_ids()
        race(aged)

    store.races = [None] * commit + [meanwhile]
    result = run(store, mixed=mixed)
    assert result.problem is None
    if store.races:
        assert mixed == "leave" and commit
        return
    young = {7, 9, 10} | stays
    left = numbers(store)
    assert young <= left
    if mixed == "leave":
        assert not {0, 1} & left
        return
    assert left == young
    # The next run takes the rows that came meanwhile.
    assert result.files_overtaken == (race in (compact, remove_old))
    run(store, mixed=mixed)
    assert numbers(store) == young - {11, 14} - ({12} if race is append_old else set())


@pytest.mark.parametrize(
    ("mixed", "configuration"), [("deletion-vectors", {}), ("rewrite", {}), ("rewrite", FEED)]
)
def test_a_crash_at_any_step_loses_no_young_row(
    mixed: str, configuration: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "FILES_READ_PER_COMMIT", 2)

    def made() -> Aged:
        return Aged(MemoryStore(now_ms=lambda: epoch_millis(NOW)), **configuration)

    trial = FaultStore(made().store)
    run(trial, mixed=mixed, workers=1)
    cases, versions = some(list(distinct_faults(trial.trace)), 60), set()
    for at, fault in cases:
        aged = made()
        with suppress(SimulatedCrash, DeltaMaintenanceError, OSError):
            run(FaultStore(aged.store, at=at, fault=fault), mixed=mixed, workers=1)
        left = numbers(aged.store)
        assert KEPT[mixed] <= left, f"{fault} at {at}"
        versions.add(latest(aged.store))
        run(aged.store, mixed=mixed, seed=8)
        assert numbers(aged.store) == KEPT[mixed], f"{fault} at {at}"
        assert deleted_in_feed(aged.store) == ({2, 5, 6} if configuration else set())
    # With change data, files without other rows have a commit of their own.
    assert len(versions) == 4 + len(configuration)


def test_a_column_that_changed_meanwhile_ends_the_run() -> None:
    store = RacedStore()
    aged = Aged(store)
    other = schema_string(field("n", "long"), field("t", "string"))

    def change() -> None:
        aged.table.builder.commit([metadata(schema=other)])

    store.races = [change]
    with pytest.raises(DeltaMaintenanceError):
        run(store)
    assert numbers(store) == ALL


def test_deleted_rows_stay_deleted_and_do_not_count() -> None:
    aged = Aged()
    aged.table.delete(aged.mixed, [0, 1])
    aged.table.delete(aged.old, [0])
    result = run(aged.store, mixed="deletion-vectors")
    assert numbers(aged.store) == {4, 7, 9, 10}
    assert result.rows == 1 + 1 + 1 + 1
    vector = live_adds(aged.store)[aged.mixed]["deletionVector"]
    assert vector["cardinality"] == 3 and vector != inline_vector([0, 1])


def test_a_policy_removes_old_rows_when_files_have_some() -> None:
    aged = Aged()
    rule = {"column": "t", "older_than": "30 days"}

    def due(**more: Any) -> Any:
        return only(assess(Table(aged.store).snapshot(), asked(expire={**rule, **more}), now=NOW))

    assert due().status == "due" and due().reclaims_files == 1
    assert due(column="s").status == "blocked"
    run(aged.store)
    found = due()
    assert found.status == "not-due" and "left" in found.reason
    assert due(mixed="rewrite").status == "due"


def test_a_plan_does_not_fail_for_a_reader_whose_store_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    stream = Reader(kind="stream", name="silver", address=str(tmp_path / "file"))
    notes = planned(Aged().store, holders=Holders(readers=(stream,))).notes
    assert any("not known: the position of the stream silver" in note for note in notes)


def test_one_partition_value_that_cannot_be_read_stops_nothing() -> None:
    table = TableBuilder()
    spelt = {
        "old": "2025-12-01",
        "old in UTC": "2025-12-01 00:00:00 UTC",
        "old in a zone": "2025-12-02 13:59:59 Europe/Helsinki",
        "young in a zone": "2025-12-02 14:00:00 Europe/Helsinki",
        "young": "2025-12-04",
        "other": "2025-12-01 00:00:00 PST",
        "no time": "yesterday",
    }
    table.commit(
        [
            features("deletionVectors"),
            metadata(
                schema=schema_string(field("n", "long"), field("t", "timestamp")),
                partitioned_by=["t"],
            ),
            *(add(path, partitionValues={"t": value}) for path, value in spelt.items()),
        ]
    )
    plan = planned(table.store)
    assert plan.files == 3
    assert any("2 files whose value of t cannot be read" in note for note in plan.notes)
    run(table.store)
    assert live_adds(table.store).keys() == set(list(spelt)[3:])
    # They are named where the note sends to.
    found = fsck_run(Table(table.store)).findings
    assert {each.path for each in found if each.kind == "invalid-partition-value"} == {
        "other",
        "no time",
    }


def test_partition_values_of_a_date_that_was_widened_are_its_first_instants() -> None:
    changes = [{"fromType": "date", "toType": "timestamp_ntz"}]
    widened = field("t", "timestamp_ntz", **{"delta.typeChanges": changes})
    table = TableBuilder()
    table.commit(
        [
            features("typeWidening"),
            metadata(schema=schema_string(field("n", "long"), widened), partitioned_by=["t"]),
            add("old", partitionValues={"t": "2025-12-01"}),
            add("young", partitionValues={"t": "2025-12-03"}),
            add("new", partitionValues={"t": "2025-12-03 00:00:00"}),
        ]
    )
    planned = expire.plan(
        table.open().snapshot(), ExpireOptions(column="t", older_than=AGE), RunContext.at(NOW)
    )
    assert planned.files == 1
