"""The form of new files that options and policies ask for: sizes, row groups and bloom filters."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import duckdb
import fsspec.implementations.memory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import cluster, optimize
from delta_maintenance.operations.cluster import ClusterOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract, new_files
from delta_maintenance.operations.rewriting.models import RewritePlan, RewriteResult
from delta_maintenance.policies.assess import assess
from delta_maintenance.table.read import Table
from tests.support.rewrites.arrow_features import needs_bloom_filters
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.rewrites.table_rows import live_adds, live_rows
from tests.support.tables.policy_tables import asked

ROWS, FILES = 3000, 3
VERBS = {
    "optimize": (optimize, OptimizeOptions),
    "cluster": (cluster, partial(ClusterOptions, by=("other",))),
}
FIELDS = (
    field("key", "long"),
    field("other", "long"),
    field("flag", "boolean"),
    field("list", {"type": "array", "elementType": "long", "containsNull": True}),
    field("inner", {"type": "struct", "fields": [field("text", "string")]}),
    field("p", "string"),
)
FPP = {"ndv": ROWS, "fpp": 0.01}


def rows(file: int) -> pa.Table:
    """Rows of which each file has every third key, in a random order."""
    keys = np.random.default_rng(file).permutation(np.arange(file, ROWS * FILES, FILES))
    return pa.table(
        {
            "key": keys,
            "other": keys * 7 % 1000,
            "flag": keys % 2 == 0,
            "list": pa.array([[1]] * ROWS, pa.list_(pa.int64())),
            "inner": pa.array([{"text": f"text {key}"} for key in keys.tolist()]),
        }
    )


def table(**writing: Any) -> DataTable:
    made = DataTable(*FIELDS, partitioned_by=("p",))
    tables = [rows(file) for file in range(FILES)]
    made.append(*tables, partitionValues={"p": "a"}, writing=writing)
    made.store.now_ms = lambda: epoch_millis(NOW)
    return made


def plan(made: DataTable, verb: str = "optimize", **options: Any) -> RewritePlan:
    operation, settings = VERBS[verb]
    context = RunContext.at(NOW)
    found: RewritePlan = operation.plan(
        Table(made.store).snapshot(), settings(workers=1, **options), context=context
    )
    return found


def run(made: DataTable, verb: str = "optimize", **options: Any) -> RewriteResult:
    planned: Any = plan(made, verb, **options)
    result: RewriteResult = VERBS[verb][0].apply(Table(made.store), planned)
    assert result.status == "rewritten", result.problem
    return result


def footers(made: DataTable) -> list[pq.FileMetaData]:
    return [pq.read_metadata(io.BytesIO(made.store.read(path))) for path in live_adds(made.store)]


def filtered(made: DataTable) -> list[set[str]]:
    """The columns with a bloom filter in each row group of live files."""
    groups = [
        footer.row_group(at) for footer in footers(made) for at in range(footer.num_row_groups)
    ]
    return [
        {
            chunk.path_in_schema
            for chunk in map(group.column, range(group.num_columns))
            if chunk.bloom_filter_offset is not None
        }
        for group in groups
    ]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "options, size, group_rows",
    [
        ({}, 128 << 20, 1 << 20),
        ({"reader": "spark"}, 128 << 20, 1 << 20),
        ({"reader": "sql-endpoint"}, 400_000_000, 2_000_000),
        ({"reader": "direct-lake"}, 1 << 30, 8_000_000),
        ({"reader": "direct-lake", "target_bytes": 5 << 20}, 5 << 20, 8_000_000),
        ({"reader": "direct-lake", "row_group_rows": 77}, 1 << 30, 77),
        ({"row_group_rows": 77}, 128 << 20, 77),
    ],
)
def test_numbers_override_the_profile_of_a_reader(
    verb: str, options: dict[str, Any], size: int, group_rows: int
) -> None:
    planned = plan(table(), verb, **options)
    assert (planned.target_bytes, planned.row_group_rows) == (size, group_rows)
    rule = {"above_share": 0, "by": ["other"]} if verb == "cluster" else {}
    policy = asked(**{verb: {"min_files_saved": 1} | rule | options})
    (found,) = assess(Table(table().store).snapshot(), policy, now=NOW).due
    assert found.options == VERBS[verb][1](**options)


@pytest.mark.parametrize("verb", VERBS)
def test_row_groups_have_the_rows_that_are_asked_for(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    made = table()
    before = live_rows(made.store)
    run(made, verb, row_group_rows=700)
    (footer,) = footers(made)
    groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    assert groups == [700] * 12 + [600]
    assert live_rows(made.store) == before


@pytest.mark.conformance("RW-43")
def test_row_groups_that_exceed_the_memory_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plan(table()).memory_bytes
    assert plan(table(), reader="direct-lake").memory_bytes == usual + 3 * (224 << 20)
    monkeypatch.setattr(new_files, "LARGE_GROUP_BYTES", 1 << 16)
    made = table()
    run(made, reader="direct-lake")
    (footer,) = footers(made)
    assert footer.num_rows == ROWS * FILES
    # A row takes more than 32 bytes, and rows come in batches of a file.
    assert footer.num_row_groups == FILES


@needs_bloom_filters
@pytest.mark.parametrize("verb", VERBS)
def test_new_files_get_bloom_filters_besides_those_of_the_sources(verb: str) -> None:
    made = table(bloom_filter_options={"other": FPP})
    before = live_rows(made.store)
    run(made, verb, bloom=("KEY", "inner.text"), row_group_rows=1000)
    assert filtered(made) == [{"key", "other", "inner.text"}] * 9
    assert live_rows(made.store) == before
    assert plan(made, verb, bloom=("key",)).is_noop


@needs_bloom_filters
@pytest.mark.parametrize("given, copied", [("key", True), ("other", False)])
def test_row_groups_are_copied_only_with_the_filters_that_are_asked_for(
    given: str, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    made = table(bloom_filter_options={given: FPP})
    result = run(made, bloom=("key",))
    assert [report.copied for report in result.bins] == [copied]
    assert all("key" in found for found in filtered(made))
    # Filters that nobody asks for do not prevent the copy.
    other = run(table(bloom_filter_options={"other": FPP}))
    assert [report.copied for report in other.bins] == [True]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "column, problem",
    [
        ("flag", "flag cannot have a bloom filter: values of its type"),
        ("list", "list cannot have a bloom filter: values of its type"),
        ("p", "p cannot have a bloom filter: it is a partition column"),
        ("inner", "the column inner is a struct"),
        ("none", "no column none"),
    ],
)
def test_columns_without_filters_are_refused_by_name(verb: str, column: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        plan(table(), verb, bloom=("key", column))


def test_a_version_of_arrow_without_filters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "writes_bloom_filters", lambda: False)
    with pytest.raises(RefusedError, match="PyArrow .* writes no bloom filters"):
        plan(table(), bloom=("key",))


class Watched(fsspec.implementations.memory.MemoryFileSystem):
    """Files in memory that note the ranges that are read."""

    protocol = "watched"
    store: dict[str, Any] = {}
    ranges: set[tuple[int, int]] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("watched://")

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        read = file.read

        def noted(size: int = -1) -> Any:
            start = file.tell()
            found = read(size)
            self.ranges.add((start, start + len(found)))
            return found

        file.read = noted
        return file


@needs_bloom_filters
def test_duckdb_reads_fewer_row_groups_afterwards() -> None:
    keys = np.random.default_rng(0).permutation(200_000)
    rest = np.random.default_rng(1).integers(0, 1 << 62, len(keys))
    read = {}
    for bloom in ((), ("key",)):
        made = DataTable(field("key", "long"), field("rest", "long"))
        half = pa.table({"key": keys, "rest": rest}).slice(0, 100_000)
        made.append(half, pa.table({"key": keys, "rest": rest}).slice(100_000))
        run(made, bloom=bloom, row_group_rows=20_000)
        (path,) = live_adds(made.store)
        # DuckDB can remember what it has read at a path.
        name = f"/table{len(bloom)}.parquet"
        Watched().pipe_file(name, made.store.read(path))
        Watched.ranges.clear()
        with duckdb.connect() as connection:
            connection.register_filesystem(Watched())
            text = f"FROM read_parquet('watched://{name}') SELECT sum(rest) WHERE key = 4711"
            answer = connection.execute(text).fetchall()
        assert answer == [(int(rest[np.flatnonzero(keys == 4711)[0]]),)]
        (footer,) = footers(made)
        starts = [footer.row_group(at).column(0).data_page_offset for at in range(10)]
        read[bloom] = sum(
            any(begin <= start < end for begin, end in Watched.ranges) for start in starts
        )
    assert read[()] == 10
    assert read["key",] <= 2
