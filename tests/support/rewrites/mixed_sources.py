"""Sources for bins of which only some row groups are copied."""

from __future__ import annotations

import io
import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files import DataFileLayout, FileNaming
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import Bin, DataFileSpec, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.rewrite import rewrite_bin
from tests.support.rewrites.data_files import (
    ROW_ID,
    ROW_TRACKING,
    ROW_VERSION,
    field,
    parquet,
    put,
    schema_string,
    source,
)

FIELDS = (
    field("n", "long"),
    field("f", "double"),
    field("s", "string"),
    field("d", "date"),
    field("t", "timestamp"),
)
TRACKED = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=("rowTracking", "domainMetadata")
)
PLAIN = Protocol(min_reader_version=1, min_writer_version=2)
LEAST = 3500
"""The least average size of row groups that are copied: more than that of 20 rows here."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """A source file of a bin."""

    seed: int
    rows: int
    group: int
    deleted: frozenset[int]
    form: str
    ids: str
    """Whether the file contains row IDs: `no`, `all`, or `some` rows have one."""


INSTANT = pa.timestamp("us", "UTC")
FORMS: Mapping[str, dict[str, Any]] = {
    "own": {"store_schema": False},
    "snappy": {"store_schema": False, "compression": "snappy"},
    "pages": {"data_page_version": "2.0", "write_page_index": True},
    "int96": {"store_schema": False, "use_deprecated_int96_timestamps": True},
    "other": {},
}


def content(file: Given) -> pa.Table:
    """The rows of a source, with NaN, nulls and texts of many lengths."""
    chance = np.random.default_rng(file.seed)
    numbers = chance.integers(-(2**62), 2**62, file.rows)
    floats = chance.choice([0.5, -0.0, 7.25, np.nan if file.seed % 3 == 0 else 1.0], file.rows)
    absent = chance.random(file.rows) < 0.1
    return pa.table(
        {
            "n": pa.array(numbers, mask=absent),
            "f": pa.array(floats, mask=chance.random(file.rows) < 0.1, from_pandas=False),
            "s": pa.array(
                [f"{number:x}" * (1 + number % 3) for number in numbers.tolist()], pa.string()
            ),
            "d": pa.array((19_000 + numbers % 1000).astype(np.int32)).cast(pa.date32()),
            "t": pa.array(_instants(numbers, file.seed), mask=absent).cast(INSTANT),
        }
    )


def _instants(numbers: Any, seed: int) -> Any:
    """Microseconds in the years 1905 to 2034, and in some files in the years 1 to 9999."""
    if seed % 11 == 10:
        return numbers % (3 * 10**17) - 62 * 10**15
    return numbers % (4 * 10**15) - 2 * 10**15


def stored(file: Given) -> bytes:
    """The bytes of a source."""
    rows = content(file)
    if file.form == "other":
        rows = rows.append_column("dropped", rows["n"])
    if file.ids != "no":
        ids, versions = own_ids(file)
        rows = rows.append_column(ROW_ID, ids).append_column(ROW_VERSION, versions)
    data: bytes = parquet(rows, row_group_size=file.group, **FORMS[file.form])
    return data


def own_ids(file: Given) -> tuple[pa.Array, pa.Array]:
    """The row IDs and row commit versions that a source contains."""
    absent = np.arange(file.rows) % 5 == 0 if file.ids == "some" else np.zeros(file.rows, bool)
    ids = 10**9 * (file.seed + 1) + np.arange(file.rows)[::-1]
    return pa.array(ids, mask=absent), pa.array(ids % 3, mask=absent)


def expected(file: Given, number: int, *, tracked: bool) -> list[str]:
    """The live rows of a source in their order, with row IDs. The texts of equal NaN are equal."""
    rows = content(file)
    if tracked:
        fresh = pa.array(1000 * number + np.arange(file.rows))
        version = pa.array([number] * file.rows)
        if file.ids != "no":
            ids, versions = own_ids(file)
            fresh = pa.compute.coalesce(ids, fresh)
            version = pa.compute.coalesce(versions, version)
        rows = rows.append_column(ROW_ID, fresh).append_column(ROW_VERSION, version)
    kept = [at for at in range(file.rows) if at not in file.deleted]
    return [repr(row) for row in rows.take(pa.array(kept, pa.int64())).to_pylist()]


@st.composite
def sources(draw: st.DrawFn) -> Given:
    rows = draw(st.integers(1, 400))
    group = draw(st.sampled_from([20, 90, 150, 400]))
    where = draw(st.sampled_from(["none", "some", "group", "all"]))
    deleted: set[int] = set()
    if where == "some":
        deleted = draw(st.sets(st.integers(0, rows - 1), max_size=5))
    if where == "group":
        deleted = set(range(group, min(rows, 2 * group + 1)))
    if where == "all":
        deleted = set(range(rows))
    return Given(
        seed=draw(st.integers(0, 50)),
        rows=rows,
        group=group,
        deleted=frozenset(deleted),
        form=draw(st.sampled_from([*FORMS, "own", "own"])),
        ids=draw(st.sampled_from(["no", "all", "some"])),
    )


def spec_of(*, tracked: bool, **changes: Any) -> RewriteSpec:
    protocol = TRACKED if tracked else PLAIN
    configuration = ROW_TRACKING if tracked else {}
    metadata = Metadata(id="t", schema_string=schema_string(*FIELDS), configuration=configuration)
    files = DataFileSpec(
        layout=DataFileLayout.of(protocol, metadata),
        statistics=StatisticsColumns.of(protocol, metadata, {}),
        group_bytes=8000,
    )
    base = RewriteSpec(
        files=files,
        naming=FileNaming(partition_columns=()),
        target_bytes=1 << 20,
        copied_group_bytes=LEAST,
    )
    return replace(base, **changes)


def rewritten(store: MemoryStore, files: Sequence[Given], spec: RewriteSpec) -> RewrittenBin:
    """Rewrites a bin with these sources."""
    deleted = {number: sorted(file.deleted) for number, file in enumerate(files) if file.deleted}
    return rewritten_files(store, list(map(stored, files)), spec, deleted=deleted)


def rewritten_files(
    store: MemoryStore,
    files: Sequence[bytes],
    spec: RewriteSpec,
    *,
    deleted: Mapping[int, Sequence[int]] | None = None,
    without_ids: Container[int] = (),
) -> RewrittenBin:
    """Rewrites a bin with these files, which are named `f0`, `f1` and so on.

    `deleted` has the positions of deleted rows by the number of the file. In a table with row
    tracking, the log has no row IDs for the files in `without_ids`.
    """
    made, reasons = [], []
    tracked = spec.files.layout.tracks_rows
    for number, data in enumerate(files):
        put(store, f"f{number}", data)
        ids = {"base_row_id": 1000 * number, "default_row_commit_version": number}
        gone = (deleted or {}).get(number)
        made.append(
            source(
                f"f{number}",
                data,
                rows=pq.read_metadata(io.BytesIO(data)).num_rows,
                deleted=gone,
                **(ids if tracked and number not in without_ids else {}),
            )
        )
        reasons.append(("small", "deleted-rows") if gone else ("small",))
    numbers = itertools.count()
    return rewrite_bin(
        store,
        Bin(number=0, sources=tuple(made), reasons=tuple(reasons)),
        spec,
        new_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
    )


def outputs(store: MemoryStore, done: RewrittenBin) -> list[pa.Table]:
    found = []
    for output in done.outputs:
        rows = pq.read_table(io.BytesIO(store.read(output.name)), coerce_int96_timestamp_unit="us")
        # Arrow returns INT96 without a time zone.
        at = rows.column_names.index("t")
        found.append(rows.set_column(at, "t", rows["t"].cast(INSTANT)))
    return found


def groups_of(store: MemoryStore, done: RewrittenBin) -> list[int]:
    """The number of rows in each row group of the first new file."""
    found = pq.read_metadata(io.BytesIO(store.read(done.outputs[0].name)))
    return [found.row_group(at).num_rows for at in range(found.num_row_groups)]


BIG = Given(seed=1, rows=400, group=100, deleted=frozenset(), form="own", ids="no")
SMALL = replace(BIG, seed=2, rows=30)
