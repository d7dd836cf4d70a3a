"""Type widening is dropped only when no live file needs it, for every type change and place.

Other readers prove it: without the feature, they return the rows that were written.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CommitConflictError, CorruptTableError
from delta_maintenance.operations.rewriting import live_columns
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.table.read import Table
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.rewrites.data_files import DataTable, field
from tests.support.suite.play import examples
from tests.support.tables.droppable_tables import Clock, drop, planned

INTEGERS = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
ARROW = INTEGERS | {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}
Number = Decimal | float | int | date


def arrow_of(name: str) -> pa.DataType:
    if name.startswith("decimal"):
        return pa.decimal128(*map(int, name[8:-1].split(",")))
    return ARROW[name]


def decimal_of(precision: int, scale: int) -> str:
    return f"decimal({precision},{scale})"


@dataclass(frozen=True)
class Change:
    """A type change of the protocol's table."""

    before: str
    after: str

    @property
    def values(self) -> list[Number | None]:
        if self.before in INTEGERS:
            largest = 2 ** (INTEGERS[self.before].bit_width - 1) - 1
            return [largest, -largest - 1, 0, None]
        if self.before == "date":
            return [date(1970, 1, 1), date(2024, 2, 29), None]
        if self.before == "float":
            return [0.5, -1024.25, None]
        kind = arrow_of(self.before)
        digits = (9,) * kind.precision
        return [*(Decimal((sign, digits, -kind.scale)) for sign in (0, 1)), None]


FIXED = [
    *(Change(a, b) for at, a in enumerate(INTEGERS) for b in list(INTEGERS)[at + 1 :]),
    *(Change(name, "double") for name in ("byte", "short", "integer", "float")),
    Change("date", "timestamp_ntz"),
]


@st.composite
def to_decimals(draw: st.DrawFn) -> Change:
    before = draw(st.sampled_from([*INTEGERS, "decimal"]))
    digits, scale = (20, 0) if before == "long" else (10, 0)
    if before == "decimal":
        digits = draw(st.integers(1, 37))
        scale = draw(st.integers(0, digits))
        before = decimal_of(digits, scale)
    more = draw(st.integers(int(before.startswith("decimal")), 38 - digits))
    return Change(before, decimal_of(digits + more, scale + draw(st.integers(0, more))))


CHANGES = st.one_of(st.sampled_from(FIXED), to_decimals())
ROWS = 4
"""The number of rows of a file."""
MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "199"}


@dataclass(frozen=True)
class Place:
    """A place of a value in a column: the column's type, its values, and the path of the change."""

    schema: Callable[[str], Any]
    kind: Callable[[pa.DataType], pa.DataType]
    value: Callable[[Any], Any]
    path: str | None = None


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct(kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field("x", kind)]}


def inside(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("x", kind)])


PLACES = {
    "column": Place(lambda k: k, lambda k: k, lambda v: v),
    "field": Place(struct, inside, lambda v: {"x": v}),
    "element": Place(array, pa.list_, lambda v: [v, v], "element"),
    "view": Place(array, pa.list_view, lambda v: [v, v], "element"),
    "value": Place(
        lambda k: mapping("string", k),
        lambda k: pa.map_(pa.string(), k),
        lambda v: [("k", v)],
        "value",
    ),
    "key": Place(
        lambda k: mapping(k, "string"),
        lambda k: pa.map_(k, pa.string()),
        lambda v: None if v is None else [(v, "v")],
        "key",
    ),
    "deep": Place(
        lambda k: array(mapping("string", array(struct(k)))),
        lambda k: pa.list_(pa.map_(pa.string(), pa.list_(inside(k)))),
        lambda v: [[("k", [{"x": v}])], None],
    ),
}
"""`view` is a layout of lists in memory, which Arrow restores from the footer."""


Column = tuple[Change, str]
"""A type change, and the name of its place in the column."""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"store_decimal_as_integer": True},
    {"store_schema": False},
    {"version": "1.0"},
]


def field_of(at: int, column: Column, *, recorded: bool, mapped: bool) -> dict[str, object]:
    change, place = column[0], PLACES[column[1]]
    metadata: dict[str, Any] = {}
    if recorded:
        record = {"fromType": change.before, "toType": change.after}
        record |= {} if place.path is None else {"fieldPath": place.path}
        metadata["delta.typeChanges"] = [record]
    kind = place.schema(change.after)
    if mapped:
        metadata |= mapping_of(at, f"col-{at}")
        kind = with_names(kind, 100 + at)
    return field(f"c{at}", kind, **metadata)


def mapping_of(number: int, name: str) -> dict[str, Any]:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def with_names(kind: Any, number: int) -> Any:
    if isinstance(kind, list):
        return [with_names(item, number) for item in kind]
    if not isinstance(kind, dict):
        return kind
    found = {name: with_names(value, number) for name, value in kind.items()}
    return found | ({"metadata": mapping_of(number, "x")} if kind.get("name") == "x" else {})


def table_of(clock: Clock, columns: list[Column], *, recorded: bool, mapped: bool) -> DataTable:
    """A table with an ID and these columns; one file has their former types, the other has not."""
    number = mapping_of(99, "id") if mapped else {}
    made = DataTable(
        field("id", "long", **number),
        *(
            field_of(at, column, recorded=recorded, mapped=mapped)
            for at, column in enumerate(columns)
        ),
        features=["typeWidening", "timestampNtz", *(["columnMapping"] if mapped else [])],
        configuration={"delta.enableTypeWidening": "true"} | (MAPPED if mapped else {}),
    )
    clock.govern(made.store)
    return made


def rows_of(columns: list[Column], first: int, *, former: bool, mapped: bool) -> pa.Table:
    arrays = {"id": pa.array(range(first, first + ROWS), pa.int64())}
    for at, (change, name) in enumerate(columns):
        place, kind = PLACES[name], arrow_of(change.before if former else change.after)
        values = (change.values if former else [None]) + [None] * ROWS
        stored = [place.value(value) for value in values[:ROWS]]
        arrays[f"col-{at}" if mapped else f"c{at}"] = pa.array(stored, place.kind(kind))
    return pa.table(arrays)


def widened(value: Any, change: Change) -> Any:
    """A value of the former type, as readers return it in the new type."""
    match value:
        case dict():
            return {key: widened(item, change) for key, item in value.items()}
        case list() | tuple():
            return [widened(item, change) for item in value]
        case None | str():
            return value
    return pa.scalar(value, arrow_of(change.before)).cast(arrow_of(change.after)).as_py()


def by_deltalake(path: Path) -> pa.Table:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return pa.table(query.execute("SELECT * FROM t").read_all())


def by_duckdb(path: Path) -> pa.Table:
    with closing(DuckDb()) as database:
        return database.rows(path)


def leaves(data: bytes) -> list[str]:
    """The types of a data file. Decimals have several physical types, and integers of up to 32 bits
    have one.
    """
    columns = pq.read_metadata(io.BytesIO(data)).schema
    types = []
    for at in range(len(columns)):
        leaf = columns.column(at)
        is_decimal = leaf.logical_type.type == "DECIMAL"
        plain_number = leaf.logical_type.type in ("INT", "NONE")
        logical = "" if plain_number else str(leaf.logical_type)
        types.append(f"{'' if is_decimal else leaf.physical_type} {logical}")
    return types


def copy_to(folder: Path, made: DataTable) -> None:
    """Copies a table to a folder of the local file system."""
    for batch in made.store.list_tree():
        for name in batch["path"].to_pylist():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(made.store.read(name))


@pytest.mark.cases
@pytest.mark.conformance("FEAT-14", "TW-02", "TW-05")
@settings(max_examples=examples(12))
@given(
    columns=st.lists(st.tuples(CHANGES, st.sampled_from(sorted(PLACES))), min_size=1, max_size=24),
    recorded=st.booleans(),
    mapped=st.booleans(),
    writing=st.sampled_from(OPTIONS),
)
def test_other_readers_return_the_same_rows_without_the_feature(
    columns: list[Column], recorded: bool, mapped: bool, writing: dict[str, Any]
) -> None:
    require("duckdb", "duckdb_extension_delta")
    clock = Clock()
    made = table_of(clock, columns, recorded=recorded, mapped=mapped)
    made.append(rows_of(columns, 0, former=True, mapped=mapped), writing=writing)
    made.append(rows_of(columns, ROWS, former=False, mapped=mapped))

    assert drop(made.store, clock, "typeWidening").status == "dropped"

    snapshot = Table(made.store).snapshot()
    assert "typeWidening" not in supported_features(snapshot.protocol)
    paths = snapshot.live_files()["path"].to_pylist()
    kinds = [leaves(made.store.read(path)) for path in paths]
    assert kinds[0] == kinds[-1]
    with TemporaryDirectory() as folder:
        copy_to(Path(folder), made)
        for read in (by_deltalake, by_duckdb):
            found = read(Path(folder)).sort_by("id")
            assert found["id"].to_pylist() == list(range(2 * ROWS))
            for at, (change, place) in enumerate(columns):
                values = [*change.values, None, None][:ROWS]
                wanted = [PLACES[place].value(value) for value in values]
                wanted += [PLACES[place].value(None)] * ROWS
                rows = found[f"c{at}"].to_pylist()
                assert widened(wanted, change) == plain(rows), (read.__name__, change, place)


def plain(value: Any) -> Any:
    """A value without the difference between tuples and lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.conformance("TW-05")
@pytest.mark.parametrize("change", [*FIXED[2:], Change("long", "decimal(25,4)")], ids=str)
def test_a_file_that_the_plan_overlooks_keeps_the_feature(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(live_columns._BY_SCHEMA, live_columns.OLD_TYPES, lambda *_: False)
    clock, columns = Clock(), [(change, "element")]
    made = table_of(clock, columns, recorded=True, mapped=False)
    [path] = made.append(rows_of(columns, 0, former=True, mapped=False))
    needed = INTEGERS.get(change.after, pa.int64()).bit_width > 32
    if not needed:
        # Parquet has one physical type for both.
        assert drop(made.store, clock, "typeWidening").status == "dropped"
        return
    with pytest.raises(CommitConflictError, match=f"{path}: a live file has an earlier type"):
        drop(made.store, clock, "typeWidening")
    assert "typeWidening" in supported_features(Table(made.store).snapshot().protocol)


def test_a_file_of_no_type_change_keeps_the_feature() -> None:
    clock, columns = Clock(), [(Change("double", "long"), "value")]
    made = table_of(clock, columns, recorded=False, mapped=False)
    made.append(rows_of([(Change("float", "double"), "value")], 0, former=False, mapped=False))
    with pytest.raises(CorruptTableError, match="contains double where the schema has long"):
        planned(made.store, clock, "typeWidening")


PARTITIONED = {
    ("integer", "decimal(12,2)"): {"5": Decimal("5.00"), "-3": Decimal("-3.00")},
    ("decimal(3,1)", "decimal(12,2)"): {"1.5": Decimal("1.50")},
    ("date", "timestamp_ntz"): {"2024-02-29": datetime(2024, 2, 29)},
    ("integer", "double"): {"5": 5.0},
    ("byte", "long"): {"5": 5},
}


@pytest.mark.conformance("TW-05", "PART-09")
@pytest.mark.parametrize("types", PARTITIONED, ids="-".join)
def test_partition_values_get_the_spelling_of_the_new_type(
    types: tuple[str, str], tmp_path: Path
) -> None:
    require("duckdb", "duckdb_extension_delta")
    clock, (before, after) = Clock(), types
    made = DataTable(
        field("id", "long"),
        field("p", after, **{"delta.typeChanges": [{"fromType": before, "toType": after}]}),
        features=["typeWidening", "timestampNtz"],
        partitioned_by=["p"],
    )
    clock.govern(made.store)
    values = list(PARTITIONED[types].items())
    for at, (text, _) in enumerate([*values, (None, None)]):
        made.append(pa.table({"id": pa.array([at], pa.int64())}), partitionValues={"p": text})
    assert drop(made.store, clock, "typeWidening").status == "dropped"
    copy_to(tmp_path, made)
    for read in (by_deltalake, by_duckdb):
        rows = read(tmp_path).sort_by("id")["p"].to_pylist()
        assert rows == [*(value for _, value in values), None], read.__name__
