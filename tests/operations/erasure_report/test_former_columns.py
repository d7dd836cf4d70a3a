"""Erasure reports of tables whose column was not always the same, and of values in the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations import (
    checkpoint,
    clean_log,
    drop_feature,
    erasure_report,
    keep_version,
    purge,
    vacuum,
)
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from delta_maintenance.operations.erasure_report.log_values import LogValues
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.storage import MemoryStore
from tests.support.tables.actions import add, features, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder, parquet_bytes

NOW: dict[str, Any] = {"allow_short_retention": True, "no_other_writers": True}
MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}


class Log(TableBuilder):
    """A table in memory, and its reports."""

    def __init__(self, *columns: Any, **fields: Any) -> None:
        store = MemoryStore()
        store.now_ms = lambda: int(clock.now().timestamp() * 1000)
        super().__init__(store)
        first = fields.pop("protocol", protocol())
        self.commit([first, self.meta(*columns, **fields)])

    def meta(self, *columns: Any, partition: tuple[str, ...] = (), **fields: Any) -> Any:
        return metadata(schema=schema(*columns), partitioned_by=partition, **fields)

    def write(self, name: str, data: bytes, *, at_ms: int = 0) -> None:
        """Writes a file of the log, with the time of now."""
        super().write(name, data, at_ms=int(clock.now().timestamp() * 1000))

    def data(self, path: str, values: pa.Table, **fields: Any) -> Any:
        """The add of a new file."""
        data = parquet_bytes(values)
        self.store.put(path, data)
        return add(path, size=len(data), **fields)

    def report(self, where: str) -> ErasureReportResult:
        table = self.open()
        planned = erasure_report.plan(table.snapshot(), ErasureReportOptions(where=where))
        return erasure_report.apply(table, planned)

    def run(self, verb: Any, options: Any = None) -> None:
        table, context = self.open(), RunContext(started=clock.now() + timedelta(minutes=2))
        verb.apply(table, verb.plan(table.snapshot(), options, context), context)

    def vacuum(self) -> None:
        self.run(vacuum, VacuumOptions(**NOW, retention=timedelta()))

    def clean(self) -> None:
        self.run(checkpoint)
        options = CleanLogOptions(**NOW, log_retention=timedelta(), to_the_minute=True)
        self.run(clean_log, options)


def schema(*columns: Any) -> str:
    """The schema of columns: name, type, and with a mapping the ID and the physical name."""
    fields = []
    for name, kind, *mapped in columns:
        own = dict(zip(("id", "physicalName"), mapped, strict=bool(mapped)))
        keys = {f"delta.columnMapping.{key}": value for key, value in own.items()}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": keys})
    return json.dumps({"type": "struct", "fields": fields})


def places(result: ErasureReportResult) -> dict[str, int]:
    return {each.place: each.rows for each in result.places}


ID, CUSTOMER = ("id", "long"), ("customer", "long")
BOTH = pa.table({"id": [1, 2], "customer": [4711, 5]})
WHERE = "customer = 4711"


def was_partitioned() -> Log:
    log = Log(ID, CUSTOMER, partition=("customer",))
    values = {"customer": "4711"}
    log.commit([log.data("a/p", pa.table({"id": [1]}), partitionValues=values)])
    plain = log.data("b", pa.table({"id": [2], "customer": [5]}))
    log.commit([log.meta(ID, CUSTOMER), remove("a/p"), plain])
    return log


def becomes_partitioned() -> Log:
    log = Log(ID, CUSTOMER)
    log.commit([log.data("a", BOTH)])
    b = log.data("customer=5/b", pa.table({"id": [2]}), partitionValues={"customer": "5"})
    log.commit([log.meta(ID, CUSTOMER, partition=("customer",)), remove("a"), b])
    return log


def dropped_and_added() -> Log:
    first = (("id", "long", 1, "id"), ("customer", "long", 2, "customer"))
    log = Log(*first, protocol=features("columnMapping"), configuration=MAPPED)
    log.commit([log.data("a", BOTH)])
    log.commit([log.meta(first[0], configuration=MAPPED)])
    again = ("customer", "long", 3, "col-3")
    log.commit([log.meta(first[0], again, configuration=MAPPED)])
    return log


@pytest.mark.parametrize("case", [was_partitioned, becomes_partitioned, dropped_and_added])
def test_old_files_are_read_as_their_versions_read_them(case: Any) -> None:
    log = case()
    assert places(log.report(WHERE)) in ({"removed": 1, "log": 1}, {"removed": 1}, {"live": 1})
    for value in (4712, 5):
        assert (log.report(f"customer = {value}").status == "erased") == (value == 4712)
    if case is dropped_and_added:
        (found,) = log.report(WHERE).found
        assert "purge, then vacuum" in found.ends_by
        log.run(purge)
    log.vacuum()
    log.clean()
    assert log.report(WHERE).status == "erased"


def test_a_kept_version_is_read_with_its_own_metadata() -> None:
    log = becomes_partitioned()
    log.run(keep_version, KeepVersionOptions(name="audit", keep=1))
    log.vacuum()
    log.clean()
    assert places(log.report(WHERE)) == {"held": 1}


def test_a_column_is_found_by_each_of_its_names() -> None:
    old, new = ("customer", "long", 2, "c-2"), ("client", "long", 2, "c-2")
    log = Log(old, protocol=features("columnMapping"), configuration=MAPPED)
    log.commit([log.data("a", pa.table({"c-2": [4711]}))])
    log.commit([log.meta(new, configuration=MAPPED), remove("a")])
    log.commit([log.data("b", pa.table({"c-2": [4712]}))])
    for name in ("customer", "client"):
        assert places(log.report(f"{name} = 4711")) == {"removed": 1}
        assert places(log.report(f"{name} = 4712")) == {"live": 1}
    with pytest.raises(InvalidRequestError, match="there is no column other"):
        log.report("other = 4711")


@pytest.mark.parametrize("name", ["customer", "client"])
def test_a_mapping_that_was_removed_still_finds_the_rows_of_older_versions(name: str) -> None:
    old, new = ("customer", "long", 2, "c-2"), ("client", "long", 2, "c-2")
    log = Log(old, protocol=features("columnMapping"), configuration=MAPPED)
    log.commit([log.data("a", pa.table({"c-2": [4711, 5]}))])
    log.commit([log.meta(new, configuration=MAPPED), remove("a")])
    log.commit([log.data("b", pa.table({"c-2": [6]}))])
    log.run(drop_feature, DropFeatureOptions(feature="columnMapping"))
    assert places(log.report(f"{name} = 4711")) == {"removed": 1}
    assert places(log.report(f"{name} = 6")).items() >= {"live": 1, "removed": 1}.items()
    log.vacuum()
    assert log.report("client = 4711").status == "erased"


@pytest.mark.parametrize(
    ("before", "kind", "values", "where"),
    [
        ("string", "long", pa.array(["4711", "x"]), "customer = 4711"),
        ("integer", "long", pa.array([4711], pa.int32()), "customer IN (4711, 9999999999)"),
        ("date", "timestamp_ntz", pa.array([0], pa.date32()), "customer = '1970-01-01 00:00:00'"),
    ],
)
def test_a_column_of_another_type_is_read_with_that_type(
    before: str, kind: str, values: pa.Array, where: str
) -> None:
    log = Log(("customer", before))
    log.commit([log.data("a", pa.table({"customer": values}))])
    log.commit([log.meta(("customer", kind)), remove("a")])
    assert places(log.report(where)) == {"removed": 1}


def test_the_problem_of_a_column_without_single_values_is_named() -> None:
    log = Log(("tags", {"type": "array", "elementType": "long", "containsNull": True}), ID)
    with pytest.raises(InvalidRequestError, match="tags is of type array<long>, which"):
        log.report("tags = 5")
    # An older version with such a column leaves the rest of the table searchable.
    log.commit([log.data("a", pa.table({"tags": [[4711]], "id": [1]}))])
    log.commit([log.meta(("tags", "long"), ID), remove("a")])
    result = log.report("tags = 4711")
    assert result.status == "uncertain" and "array<long>" in result.not_examined[0]


def test_a_local_time_of_an_unknown_zone_is_uncertain_if_a_zone_makes_it_match() -> None:
    log = Log(ID, ("t", "timestamp"), partition=("t",))
    values = {"t": "2024-05-01 10:00:00"}
    log.commit([log.data("a", pa.table({"id": [1]}), partitionValues=values)])
    assert places(log.report("t = '2024-05-01 10:00:00'"))["live"] == 1
    unsure = log.report("t = '2024-05-01 02:00:00'")
    assert unsure.status == "uncertain" and "time without a time zone" in unsure.not_examined[0]
    assert log.report("t = '2024-05-03 10:00:00'").status == "erased"
    values = {"t": "9999-12-31 23:59:59"}
    log.commit([log.data("c", pa.table({"id": [1]}), partitionValues=values)])
    assert log.report("t = '2024-05-03 10:00:00'").status == "erased"
    assert log.report("t = '9999-12-31 10:00:00'").status == "uncertain"
    values = {"t": "2024-05-01T10:00:00.000000Z"}
    log.commit([remove("a"), log.data("b", pa.table({"id": [1]}), partitionValues=values)])
    log.vacuum()
    assert log.report("t = '2024-05-01 02:00:00'").status == "erased"


def test_a_column_that_no_version_has_any_more_leaves_the_erasure_uncertain() -> None:
    log = dropped_and_added()
    log.clean()
    unsure = log.report(WHERE)
    assert unsure.status == "uncertain" and "columns that no version has" in unsure.not_examined[0]
    log.run(purge)
    log.vacuum()
    assert log.report(WHERE).status == "erased"


def test_an_unknown_file_is_read_in_every_way_that_fits() -> None:
    log = was_partitioned()
    log.store.put("stray.parquet", parquet_bytes(pa.table({"id": [1], "customer": [4711]})))
    assert places(log.report(WHERE))["unreferenced"] == 1
    # The other way, with a partition value that nobody knows, is no longer a way to read it.
    assert log.report("customer = 4712").status == "erased"
    log.store.put("other.parquet", parquet_bytes(pa.table({"id": [1]})))
    assert log.report("customer = 4712").status == "uncertain"


def statistics(least: int, greatest: int) -> str:
    bounds = {
        name: {"id": n, "customer": n}
        for name, n in (("minValues", least), ("maxValues", greatest))
    }
    return json.dumps({"numRecords": 2, **bounds, "nullCount": {"id": 0, "customer": 0}})


@pytest.mark.parametrize("kind", ["commits", "checkpoint", "sidecars", "compaction", "checksum"])
def test_values_in_the_log_are_a_place_until_the_log_is_cleaned(kind: str) -> None:
    log = Log(ID, CUSTOMER)
    file = log.data("a", BOTH, stats=statistics(5, 4711))
    log.commit([file])
    more: list[str] = []
    match kind:
        case "checkpoint":
            more = log.checkpoint()
        case "sidecars":
            more = log.v2_checkpoint(sidecars=1)[:1]
        case "compaction":
            more = [log.compaction(0, 1)]
        case "checksum":
            log.checksum(1, {"allFiles": [file["add"]]})
            more = [f"{1:020}.crc"]
    log.commit([remove("a")])
    log.store.delete("a")
    found = log.report(WHERE)
    assert (found.status, {each.place for each in found.places}) == ("remains", {"log"})
    paths = {each.path.removeprefix("_delta_log/") for each in found.found}
    assert paths == {f"{1:020}.json", *more}
    (total,) = found.places
    assert total.last_end is not None
    assert abs(total.last_end - clock.now() - timedelta(days=30)) < timedelta(hours=1)
    assert log.report("customer = 4712").status == "erased"
    log.commit([log.data("b", pa.table({"id": [1], "customer": [6]}))])
    log.clean()
    assert log.report(WHERE).status == "erased"


@pytest.mark.parametrize("struct", [False, True])
def test_an_instant_whose_offset_the_log_cut_is_a_place(struct: bool) -> None:
    """Delta Spark 4.4 in Berlin: the offset was +00:53:28, so that the bound is 28 seconds late."""
    log = Log(ID, ("at", "timestamp"))
    at = pa.array([datetime(1850, 1, 1, 11, 6, 32, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    stated = {"at": "1850-01-01T12:00:00.000+00:53"}
    stats = {"numRecords": 1, "minValues": stated, "maxValues": stated, "nullCount": {"at": 0}}
    values = pa.table({"id": [1], "at": at})
    log.commit([log.data("a", values, stats=json.dumps(stats))])
    if struct:
        log.checkpoint()
    log.commit([remove("a")])
    log.store.delete("a")
    assert log.report("at = '1850-01-01 11:06:32'").status == "remains"
    assert log.report("at < '1850-01-01 11:06:40' AND id = 1").status == "remains"
    for where in ("at = '1850-01-01 11:09:00'", "at < '1850-01-01 11:05:00'"):
        assert log.report(where).status == "erased"


def test_values_of_other_rows_that_exist_are_no_trace_of_erased_ones(tmp_path: Path) -> None:
    log = Log(ID, CUSTOMER)
    log.commit(
        [
            log.data(
                "a",
                pa.table({"id": [1, 9], "customer": [5, 4711]}),
                stats=json.dumps(
                    {
                        "numRecords": 2,
                        "minValues": {"id": 1, "customer": 5},
                        "maxValues": {"id": 9, "customer": 4711},
                    }
                ),
            )
        ]
    )
    assert log.report("customer = 4711 AND id = 1").status == "erased"
    log.commit([remove("a")])
    log.store.delete("a")
    # Nobody can tell any more that the two values were those of different rows.
    assert places(log.report("customer = 4711 AND id = 1")) == {"log": 1}


def test_simple_tables_of_other_writers_are_called_erased(tmp_path: Path) -> None:
    root = str(tmp_path / "table")
    for first in (0, 10):
        ids = pa.table({"customer": pa.array(range(first, first + 10), pa.int64())})
        deltalake.write_deltalake(root, ids, mode="append")
    deltalake.DeltaTable(root).delete("customer = 7")
    table, context = open_table(root), RunContext(started=clock.now() + timedelta(minutes=2))
    options = VacuumOptions(**NOW, retention=timedelta())
    vacuum.apply(table, vacuum.plan(table.snapshot(), options, context), context)
    planned = erasure_report.plan(table.snapshot(), ErasureReportOptions(where="customer = 7"))
    result = erasure_report.apply(table, planned)
    assert (result.status, result.not_examined, result.places) == ("erased", (), ())


def test_a_log_that_is_cleaned_during_the_report_is_listed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(ID, CUSTOMER)
    log.commit([log.data("a", BOTH, stats=statistics(5, 4711))])
    log.checkpoint()
    search = LogValues.run

    def clean_first(values: LogValues) -> Any:
        listed = log.store.list_from

        def once(*arguments: Any) -> Any:
            found = [*listed(*arguments)]
            monkeypatch.setattr(log.store, "list_from", listed)
            log.drop(f"{0:020}.json")
            return iter(found)

        monkeypatch.setattr(log.store, "list_from", once)
        return search(values)

    monkeypatch.setattr(LogValues, "run", clean_first)
    assert places(log.report(WHERE)) == {"live": 1, "log": 2}
