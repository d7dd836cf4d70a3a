"""Row groups copied into new files: the same rows and statistics, and every byte proved."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import VerificationError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.copying import row_groups
from delta_maintenance.table.data.parquet import footers, thrift
from delta_maintenance.table.data.parquet.footer_reader import StoredFooter
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    ListValue,
    Struct,
    read_struct,
    struct_bytes,
)
from tests.support.rewrites.arrow_features import needs_bloom_filters
from tests.support.rewrites.data_files import parquet
from tests.support.rewrites.typed_rows import (
    OPTIONS,
    groups_of,
    metadata_of,
    rewritten,
    rows,
    spec_of,
    stored,
)

FLOATS = ListValue(BINARY, [b"f"])
"""The path of the column with NaN."""


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.conformance("RW-25", "RW-23", "RW-26")
def test_copied_rows_and_their_statistics_are_those_of_decoded_rows(
    codec: str, page_version: str
) -> None:
    tables = [rows(seed) for seed in range(3)]
    options = {**OPTIONS, "compression": codec, "data_page_version": page_version}
    files = {f"f{at}": parquet(table, **options) for at, table in enumerate(tables)}
    store = MemoryStore()
    done = rewritten(store, files, spec_of(), rows=100)
    assert done.copied
    assert [(run.output, run.offset, run.rows) for run in done.runs] == [
        (0, 0, 100),
        (0, 100, 100),
        (0, 200, 100),
    ]
    # NaN is not equal to itself; its text is.
    assert repr(stored(store, done).to_pylist()) == repr(pa.concat_tables(tables).to_pylist())
    found = metadata_of(store, done)
    assert (found.num_rows, found.num_row_groups) == (300, 9)
    assert found.row_group(0).column(0).compression == (
        "UNCOMPRESSED" if codec == "none" else codec.upper()
    )
    decoded = rewritten(MemoryStore(), files, spec_of(copies=False), rows=100)
    assert not decoded.copied
    assert done.outputs[0].stats == decoded.outputs[0].stats


@needs_bloom_filters
@pytest.mark.conformance("RW-25")
def test_page_indexes_and_bloom_filters_belong_to_their_pages_in_the_new_file() -> None:
    files = {f"f{at}": parquet(rows(at), **OPTIONS) for at in range(2)}
    store = MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied
    data = store.read(done.outputs[0].name)
    copies = chunks_of(data)
    originals = [(chunk, file) for file in files.values() for chunk in chunks_of(file)]
    filters = 0
    for after, (before, file) in zip(copies, originals, strict=True):
        assert bytes_of(data, after.start, after.size) == bytes_of(file, before.start, before.size)
        for location, former in zip(locations(data, after), locations(file, before), strict=True):
            at, size = location
            page = memoryview(data)[at : at + size]
            assert page == memoryview(file)[former[0] : former[0] + former[1]]
        # Arrow leaves NaN out of the bounds of the second file, so these are not copied.
        has_nan = file == files["f1"] and before.metadata.get(3) == FLOATS
        assert column_index(file, before) != b""
        assert column_index(data, after) == (b"" if has_nan else column_index(file, before))
        place = after.metadata.number(footers.BLOOM_FILTER)
        if place is not None:
            filters += 1
            size = after.metadata.number(footers.BLOOM_FILTER_SIZE) or 0
            was = before.metadata.number(footers.BLOOM_FILTER) or 0
            assert bytes_of(data, place, size) == bytes_of(file, was, size)
    assert filters == 6


@pytest.mark.conformance("RW-25")
def test_a_new_file_starts_between_sources_as_for_decoded_rows() -> None:
    files = {f"f{at}": parquet(rows(at), **OPTIONS) for at in range(4)}
    store = MemoryStore()
    done = rewritten(store, files, spec_of(target_bytes=len(files["f0"])))
    assert done.copied
    assert [run.output for run in done.runs] == [0, 0, 1, 1]
    assert [run.offset for run in done.runs] == [0, 100, 0, 100]
    assert stored(store, done).num_rows == 400


def keyed(table: pa.Table, keys: Mapping[str, str]) -> bytes:
    """A file with these keys in its footer."""
    sink = io.BytesIO()
    options = {name: value for name, value in OPTIONS.items() if name != "row_group_size"}
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=40)
        writer.add_key_value_metadata(keys)
    return sink.getvalue()


def required(table: pa.Table) -> pa.Table:
    fields = [table.schema.field(0).with_nullable(False), *list(table.schema)[1:]]
    filled = table.set_column(0, "l", table["l"].fill_null(0))
    return filled.cast(pa.schema(fields))


WHOLE = pa.field("element", pa.string(), nullable=False)
OTHERS: Mapping[str, Callable[[pa.Table], bytes]] = {
    "another codec": lambda table: parquet(table, **{**OPTIONS, "compression": "gzip"}),
    "a required column": lambda table: parquet(required(table), **OPTIONS),
    "required elements": lambda table: parquet(
        table.set_column(12, "a", pa.array([["x", "y"]] * len(table), pa.list_(WHOLE))), **OPTIONS
    ),
    "INT96": lambda table: parquet(table, **OPTIONS, use_deprecated_int96_timestamps=True),
    "a dropped column": lambda table: parquet(table.append_column("x", table["l"]), **OPTIONS),
    "a missing column": lambda table: parquet(table.drop_columns("e"), **OPTIONS),
    "another order": lambda table: parquet(table.select(table.column_names[::-1]), **OPTIONS),
    "another form of decimals": lambda table: parquet(
        table, **{**OPTIONS, "store_decimal_as_integer": False}
    ),
    "field ids": lambda table: parquet(
        table.cast(pa.schema([f.with_metadata({"PARQUET:field_id": "7"}) for f in table.schema])),
        **OPTIONS,
    ),
    "another name of elements": lambda table: parquet(
        table.set_column(12, "a", table["a"].cast(pa.list_(pa.field("item", pa.string())))),
        **OPTIONS,
        use_compliant_nested_type=False,
    ),
    "a calendar that Spark 3 asks for": lambda table: keyed(
        table, {"org.apache.spark.version": "3.5.0"}
    ),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.conformance("RW-25")
def test_a_source_that_differs_in_anything_is_decoded(case: str, place: int) -> None:
    tables = [rows(1), rows(2)]
    files = {f"f{at}": parquet(table, **OPTIONS) for at, table in enumerate(tables)}
    files[f"f{place}"] = OTHERS[case](tables[place])
    store = MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied
    assert not done.refused
    assert stored(store, done).num_rows == 200
    assert sorted(groups_of(store, done)) == [20, 40, 40, 100]


ALIKE = (
    "another codec",
    "another form of decimals",
    "a calendar that Spark 3 asks for",
    "required elements",
    "INT96",
)
"""What new files may have too, if all sources have it."""


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.conformance("RW-25")
def test_sources_that_all_differ_from_a_new_file_are_decoded(case: str) -> None:
    files = {f"f{seed}": OTHERS[case](rows(seed)) for seed in range(2)}
    store = MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied == (case in ALIKE)
    assert stored(store, done).num_rows == 200


@pytest.mark.conformance("RW-25")
def test_row_groups_of_another_codec_or_with_deleted_rows_are_decoded() -> None:
    files = {f"f{at}": parquet(rows(at), **OPTIONS) for at in range(2)}
    assert not rewritten(MemoryStore(), files, spec_of(copied_codec="zstd")).copied
    assert rewritten(MemoryStore(), files, spec_of(copied_codec="snappy")).copied
    store = MemoryStore()
    done = rewritten(store, files, spec_of(), deleted=[3])
    assert groups_of(store, done) == [39, 40, 20] * 2


@pytest.mark.parametrize("reason", ["codec", "int96", "dropped-columns"])
def test_a_reason_in_the_footer_decodes_its_source_and_demands_the_codec(reason: str) -> None:
    files = {f"f{at}": parquet(rows(at), **OPTIONS) for at in range(3)}
    reasons = (("small",), (reason,), ("small", "deleted-rows"))
    store = MemoryStore()
    zstd = {
        name: parquet(rows(at), **OPTIONS | {"compression": "zstd"})
        for at, name in enumerate(files)
    }
    done = rewritten(store, zstd, spec_of(), reasons=reasons)
    assert groups_of(store, done) == [40, 40, 20, 100, 40, 40, 20]
    assert not rewritten(MemoryStore(), files, spec_of(), reasons=reasons).copied


def test_keys_of_spark_are_kept_if_they_mean_the_same_for_all_rows() -> None:
    def file(seed: int, version: str) -> bytes:
        return keyed(rows(seed), {"org.apache.spark.version": version, "pandas": "{}"})

    for versions, kept in ((("3.5.0", "3.5.0"), b"3.5.0"), (("3.5.0", "4.1.0"), b"3.1.0")):
        files = {f"f{at}": file(at, each) for at, each in enumerate(versions)}
        store = MemoryStore()
        done = rewritten(store, files, spec_of())
        assert done.copied
        assert metadata_of(store, done).metadata == {b"org.apache.spark.version": kept}
    hybrid = {"f0": file(0, "2.4.0"), "f1": file(1, "2.4.0")}
    assert not rewritten(MemoryStore(), hybrid, spec_of()).copied


def test_a_damaged_source_is_not_copied_but_named() -> None:
    files = {f"f{at}": bytearray(parquet(rows(at), **OPTIONS)) for at in range(3)}
    start = chunks_of(bytes(files["f1"]))[0].start
    files["f1"][start : start + 40] = bytes(40)
    done = rewritten(MemoryStore(), {name: bytes(data) for name, data in files.items()}, spec_of())
    assert [refusal.source.path for refusal in done.refused] == ["f1"]
    assert done.refused[0].damaged
    assert done.copied
    assert done.sums.rows == 200


@pytest.mark.parametrize("number", range(3))
def test_the_first_page_of_every_source_is_decoded(number: int) -> None:
    """A page without a checksum shows its damage only if it is decoded."""
    files = {f"f{at}": bytearray(parquet(rows(at), **OPTIONS)) for at in range(3)}
    data = files[f"f{number}"]
    # Of this column, statistics need no values.
    start = chunks_of(bytes(data))[0].start
    _, body = read_struct(bytes(data), start)
    data[body : body + 8] = b"\xff" * 8
    done = rewritten(MemoryStore(), {name: bytes(data) for name, data in files.items()}, spec_of())
    assert [refusal.source.path for refusal in done.refused] == [f"f{number}"]
    assert done.copied
    assert done.sums.rows == 200


class Flipped(MemoryStore):
    """Changes a byte of each new file while it is stored."""

    def __init__(self, at: Callable[[bytes], int]) -> None:
        super().__init__()
        self.at = at

    def open(self, path: str) -> Any:
        if not path.startswith("part-"):
            return super().open(path)
        data = bytearray(self.read(path))
        data[self.at(bytes(data))] ^= 1
        return io.BytesIO(bytes(data))


def in_chunk(number: int) -> Callable[[bytes], int]:
    def found(data: bytes) -> int:
        chunk = chunks_of(data)[number]
        return chunk.start + chunk.size - 1

    return found


def in_index(data: bytes) -> int:
    chunk = chunks_of(data)[5]
    return (chunk.tree.number(footers.OFFSET_INDEX) or 0) + 4


def in_column_index(data: bytes) -> int:
    chunk = chunks_of(data)[5]
    return (chunk.tree.number(footers.COLUMN_INDEX) or 0) + 8


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("at", [in_chunk(0), in_chunk(20), in_chunk(-1), in_index, in_column_index])
def test_a_changed_byte_in_storage_is_found(at: Callable[[bytes], int]) -> None:
    files = {f"f{n}": parquet(rows(n), **OPTIONS) for n in range(2)}
    with pytest.raises(VerificationError, match=r"other (bytes|metadata)|cannot be read back"):
        rewritten(Flipped(at), files, spec_of())


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("fault", ["position", "lost group", "swapped", "rows", "statistics"])
def test_a_wrong_footer_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(value: Struct) -> bytes:
        groups = value.structs(footers.ROW_GROUPS)
        if groups and value.get(footers.SCHEMA) is not None:
            _break(fault, value, groups)
        return struct_bytes(value)

    monkeypatch.setattr(row_groups, "struct_bytes", broken)
    files = {f"f{n}": parquet(rows(n), **OPTIONS) for n in range(2)}
    with pytest.raises(VerificationError):
        rewritten(MemoryStore(), files, spec_of())


def _break(fault: str, footer: Struct, groups: list[Struct]) -> None:
    listed = footer.get(footers.ROW_GROUPS)
    assert isinstance(listed, thrift.ListValue)
    first = groups[1].structs(footers.COLUMNS)[0].get(footers.CHUNK_METADATA)
    other = groups[2].structs(footers.COLUMNS)[0].get(footers.CHUNK_METADATA)
    assert isinstance(first, Struct) and isinstance(other, Struct)
    if fault == "position":
        for number in (footers.DATA_PAGE, footers.DICTIONARY_PAGE):
            if first.number(number) is not None:
                first.put(number, thrift.I64, (first.number(number) or 0) + 1)
    elif fault == "lost group":
        del listed.values[-1]
    elif fault == "swapped":
        listed.values[1:3] = listed.values[2:0:-1]
    elif fault == "rows":
        groups[0].put(footers.GROUP_ROWS, thrift.I64, 39)
    else:
        # The statistics of another row group.
        first.put(12, thrift.STRUCT, other.get(12))


def test_any_struct_is_written_as_it_was_read() -> None:
    for options in ({}, OPTIONS, {"data_page_version": "2.0"}):
        footer = StoredFooter(io.BytesIO(parquet(rows(3), **options))).data
        tree, end = read_struct(footer)
        assert (struct_bytes(tree), end) == (footer, len(footer))


def chunks_of(data: bytes) -> list[footers.Chunk]:
    groups = StoredFooter(io.BytesIO(data)).tree.structs(footers.ROW_GROUPS)
    return [footers.Chunk.of(chunk) for group in groups for chunk in group.structs(footers.COLUMNS)]


def bytes_of(data: bytes, start: int, size: int) -> bytes:
    return data[start : start + size]


def locations(data: bytes, chunk: footers.Chunk) -> list[tuple[int, int]]:
    """The positions and sizes of the pages of a chunk, by its offset index."""
    index, _ = read_struct(data, chunk.tree.number(footers.OFFSET_INDEX) or 0)
    found = [(each.number(1) or 0, each.number(2) or 0) for each in index.structs(1)]
    assert found
    return found


def column_index(data: bytes, chunk: footers.Chunk) -> bytes:
    start = chunk.tree.number(footers.COLUMN_INDEX) or 0
    return bytes_of(data, start, chunk.tree.number(footers.COLUMN_INDEX_SIZE) or 0)
