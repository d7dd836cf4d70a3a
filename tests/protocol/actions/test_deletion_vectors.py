"""Deletion vectors: IDs, locations, codec and file format, with real and damaged examples."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import (
    DeletionVectorDescriptor,
    decode_bitmap,
    encode_bitmap,
    load,
    read_from_file,
    unique_ids,
    write_file,
    z85_decode,
    z85_encode,
)

SIX_ROWS = [3, 4, 7, 11, 18, 29]
SIX_ROWS_INLINE = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
DRAFT_INLINE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""The example of every protocol text, in the layout of the draft that came before them."""

NATIVE_MAGIC = struct.pack("<I", 1681511376)
UUID_TEXT = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"

row_sets = st.lists(
    st.integers(0, 40) | st.integers(2**32 - 3, 2**32 + 3) | st.integers(0, 2**63 - 1), max_size=30
).map(BitMap64)


def descriptor(storage_type: str, text: str, **fields: Any) -> DeletionVectorDescriptor:
    value = {
        "storageType": storage_type,
        "pathOrInlineDv": text,
        "sizeInBytes": 44,
        "cardinality": 6,
        **fields,
    }
    return DeletionVectorDescriptor.from_json(value)


def reading(file: bytes) -> Callable[[str], bytes]:
    return lambda path: file


def no_read(path: str) -> bytes:
    raise AssertionError(f"an inline vector reads no file, but {path} was read")


@pytest.mark.conformance("DV-03")
def test_the_unique_id_distinguishes_no_offset_from_offset_0() -> None:
    assert descriptor("u", "x").unique_id == "ux"
    assert descriptor("u", "x", offset=None).unique_id == "ux"
    assert descriptor("u", "x", offset=0).unique_id == "ux@0"
    assert descriptor("p", "s3://b/x", offset=4).unique_id == "ps3://b/x@4"


@pytest.mark.conformance("DV-03")
@settings(deadline=None)
@given(
    st.lists(
        st.none()
        | st.tuples(st.sampled_from("upi"), st.text(max_size=4), st.none() | st.integers(0, 99))
    )
)
def test_the_columns_give_the_same_unique_ids(
    rows: list[tuple[str, str, int | None] | None],
) -> None:
    storage, text, offset = (
        pa.array([row and row[field] for row in rows], kind)
        for field, kind in enumerate([pa.string(), pa.string(), pa.int32()])
    )

    assert unique_ids(storage, text, offset).to_pylist() == [
        row
        and DeletionVectorDescriptor(
            storage_type=row[0],
            path_or_inline_dv=row[1],
            offset=row[2],
            size_in_bytes=1,
            cardinality=1,
        ).unique_id
        for row in rows
    ]


@pytest.mark.conformance("DV-03")
@pytest.mark.parametrize(("storage", "text"), [("u", None), (None, "x")])
def test_an_incomplete_descriptor_is_not_a_missing_vector(
    storage: str | None, text: str | None
) -> None:
    with pytest.raises(CorruptTableError, match="lacks"):
        unique_ids(
            pa.array(["u", storage]), pa.array(["y", text]), pa.array([None, None], pa.int32())
        )


@pytest.mark.conformance("DV-04")
@pytest.mark.parametrize(("prefix", "directory"), [("", ""), ("ab", "ab/"), ("a/b", "a/b/")])
def test_a_relative_vector_is_stored_below_the_table(prefix: str, directory: str) -> None:
    found = descriptor("u", f"{prefix}^-aqEH.-t@S}}K{{vb[*k^")

    assert found.relative_path() == f"{directory}deletion_vector_{UUID_TEXT}.bin"
    assert found.absolute_path() is None


@pytest.mark.conformance("DV-04")
@pytest.mark.parametrize("prefix", ["..", "../x", "/", "a//b", "./", ".", "a/..", "/etc"])
def test_a_prefix_that_leads_out_of_the_table_is_corruption(prefix: str) -> None:
    with pytest.raises(CorruptTableError, match="prefix"):
        descriptor("u", prefix + z85_encode(UUID(UUID_TEXT).bytes)).relative_path()


@pytest.mark.conformance("DV-04")
@pytest.mark.parametrize("text", ["", "short", "^-aqEH.-t@S}K{vb[*k", "^-aqEH.-t@S}K{vb[*k;"])
def test_a_uuid_that_does_not_decode_is_corruption(text: str) -> None:
    with pytest.raises(CorruptTableError):
        descriptor("u", text).relative_path()


@pytest.mark.conformance("DV-05")
def test_an_absolute_address_is_decoded_exactly_once() -> None:
    found = descriptor("p", "s3://bucket/a%20b/100%2525.bin")

    assert found.absolute_path() == "s3://bucket/a b/100%25.bin"
    assert found.relative_path() is None


@pytest.mark.conformance("DV-05")
def test_an_absolute_address_that_is_not_utf_8_is_corruption() -> None:
    with pytest.raises(CorruptTableError, match="UTF-8"):
        descriptor("p", "s3://bucket/%ff.bin").absolute_path()


@pytest.mark.conformance("DV-05")
@pytest.mark.parametrize("storage_type", ["r", "U", "", None, 1])
def test_an_unknown_storage_type_is_refused(storage_type: Any) -> None:
    with pytest.raises(UnsupportedFeatureError, match="storage type"):
        DeletionVectorDescriptor.from_json(
            {"storageType": storage_type, "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
        )


@pytest.mark.conformance("DV-05")
@pytest.mark.parametrize("offset", [0, 1])
def test_an_inline_vector_with_an_offset_is_corruption(offset: int) -> None:
    with pytest.raises(CorruptTableError, match="offset"):
        descriptor("i", SIX_ROWS_INLINE, offset=offset)


@pytest.mark.parametrize(
    "damage",
    [
        {"pathOrInlineDv": None},
        {"pathOrInlineDv": 7},
        {"sizeInBytes": None},
        {"sizeInBytes": -1},
        {"sizeInBytes": 2**31},
        {"sizeInBytes": "44"},
        {"cardinality": None},
        {"cardinality": True},
        {"cardinality": 6.0},
        {"cardinality": 2**63},
        {"offset": -1},
        {"offset": 2**31},
        {"offset": "1"},
    ],
    ids=str,
)
def test_a_descriptor_with_a_damaged_field_is_corruption(damage: dict[str, Any]) -> None:
    with pytest.raises(CorruptTableError, match=next(iter(damage))):
        descriptor("u", "x", **damage)


@pytest.mark.conformance("DV-09")
def test_the_example_of_the_z85_specification() -> None:
    assert z85_decode("HelloWorld") == bytes.fromhex("864FD26FB559F75B")
    assert z85_encode(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"


@pytest.mark.conformance("DV-09")
@given(st.binary(max_size=40))
def test_z85_round_trips_with_the_size(data: bytes) -> None:
    text = z85_encode(data)

    assert len(text) == -(-len(data) // 4) * 5
    assert z85_decode(text, len(data)) == data


@pytest.mark.conformance("DV-09")
@given(st.binary(max_size=12), st.binary(min_size=1, max_size=3))
def test_the_last_z85_group_may_be_padded(head: bytes, tail: bytes) -> None:
    head = head[: len(head) // 4 * 4]
    missing = 4 - len(tail)
    text = z85_encode(head) + "#" * missing + z85_encode(bytes(missing) + tail)[missing:]

    assert z85_decode(text, len(head + tail)) == head + tail
    assert z85_decode(text) == head + tail


@pytest.mark.conformance("DV-09")
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("Hello", 5),
        ("HelloWorld", 4),
        ("HelloWorld", 9),
        ("", 1),
        ("Hell", None),
        ("HelloW", None),
        ("Hell;", None),
        ("Hell ", None),
        ("Hellö", None),
        ("#0000Hello", None),
        ("%nSc1", None),
        ("####0", None),
        ("#####", None),
        ("###ff", None),
        ("##%%%", None),
    ],
)
def test_invalid_z85_is_corruption(text: str, size: int | None) -> None:
    with pytest.raises(CorruptTableError, match="Z85|not of"):
        z85_decode(text, size)


@pytest.mark.conformance("DV-09")
def test_the_greatest_group_decodes() -> None:
    assert z85_decode("%nSc0") == b"\xff\xff\xff\xff"
    assert z85_decode("##06@", 2) == struct.pack(">H", 6 * 85 + 81)


@pytest.mark.conformance("DV-08")
@given(row_sets)
def test_rows_round_trip(rows: BitMap64) -> None:
    data = encode_bitmap(rows)

    assert data[:4] == struct.pack("<I", 1681511377)
    assert decode_bitmap(data) == rows


@pytest.mark.conformance("DV-08", "DV-09")
def test_the_inline_vector_of_six_rows_is_read() -> None:
    assert list(load(descriptor("i", SIX_ROWS_INLINE), no_read)) == SIX_ROWS


@pytest.mark.conformance("DV-08")
def test_the_native_layout_is_read() -> None:
    data = NATIVE_MAGIC + struct.pack("<I", 3)
    for rows in ([3, 70_000], [], [5]):
        # The length, not the end of the bitmap, determines where the next one starts.
        bucket = bytes(BitMap(rows).serialize()) + b"slack"
        data += struct.pack("<I", len(bucket)) + bucket

    assert list(decode_bitmap(data)) == [3, 70_000, (2 << 32) + 5]


@pytest.mark.conformance("DV-08")
def test_the_example_of_the_protocol_is_refused_with_the_reason() -> None:
    with pytest.raises(CorruptTableError, match="big-endian layout of the protocol's first draft"):
        load(descriptor("i", DRAFT_INLINE, sizeInBytes=40), no_read)


@pytest.mark.conformance("DV-08")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x51",
        struct.pack("<I", 1681511377),
        struct.pack("<I", 1681511378) + bytes(8),
        struct.pack(">I", 1681511377) + bytes(8),
        encode_bitmap(BitMap64(SIX_ROWS))[:-1],
        struct.pack("<IQ", 1681511377, 2**40),
        NATIVE_MAGIC,
        NATIVE_MAGIC + struct.pack("<I", 1),
        NATIVE_MAGIC + struct.pack("<II", 1, 0),
        NATIVE_MAGIC + struct.pack("<II", 1, 99) + bytes(BitMap([1]).serialize())[:-1],
        NATIVE_MAGIC + struct.pack("<I", 2**32 - 1),
    ],
    ids=lambda data: data.hex()[:40] or "empty",
)
def test_invalid_bitmaps_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match="deletion vector"):
        decode_bitmap(data)


@pytest.mark.conformance("DV-08")
@given(st.sampled_from([struct.pack("<I", 1681511377), NATIVE_MAGIC, b""]), st.binary())
def test_arbitrary_bytes_raise_only_corruption(magic: bytes, body: bytes) -> None:
    with contextlib.suppress(CorruptTableError):
        decode_bitmap(magic + body)


@pytest.mark.conformance("DV-08")
def test_keys_in_the_wrong_order_are_corruption() -> None:
    bucket = bytes(BitMap([5]).serialize())
    body = struct.pack("<QI", 2, 1) + bucket + struct.pack("<I", 0) + bucket

    with pytest.raises(CorruptTableError, match="does not decode"):
        decode_bitmap(struct.pack("<I", 1681511377) + body)


@pytest.mark.conformance("DV-08")
def test_a_key_whose_top_bit_is_set_is_corruption() -> None:
    assert decode_bitmap(encode_bitmap(BitMap64([2**63 - 1]))).max() == 2**63 - 1
    with pytest.raises(CorruptTableError, match="2\\^63"):
        decode_bitmap(encode_bitmap(BitMap64([2**63])))


@pytest.mark.conformance("DV-07")
@given(st.lists(row_sets, max_size=4))
def test_every_vector_of_a_file_is_found_at_its_offset(sets: list[BitMap64]) -> None:
    file, offsets = write_file(sets)

    assert file[:1] == b"\x01"
    assert offsets[:1] == [1][: len(sets)]
    for rows, offset in zip(sets, offsets, strict=True):
        data = encode_bitmap(rows)
        assert file[offset : offset + 4] == struct.pack(">I", len(data))
        assert read_from_file(file, offset, len(data)) == data


def six_row_file(offset: int | None) -> tuple[bytes, DeletionVectorDescriptor]:
    file, _ = write_file([BitMap64(SIX_ROWS)])
    return file, descriptor("u", "^-aqEH.-t@S}K{vb[*k^", offset=offset)


@pytest.mark.conformance("DV-07")
@pytest.mark.parametrize("offset", [1, None])
def test_every_flipped_bit_of_a_file_is_detected(offset: int | None) -> None:
    file, found = six_row_file(offset)
    assert list(load(found, reading(file))) == SIX_ROWS

    for position in range(len(file)):
        for bit in range(8):
            damaged = bytearray(file)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptTableError, match="deletion vector"):
                load(found, reading(bytes(damaged)))


@pytest.mark.conformance("DV-07")
def test_a_truncated_file_is_corruption() -> None:
    file, found = six_row_file(1)
    for length in range(len(file)):
        with pytest.raises(CorruptTableError, match="deletion vector"):
            load(found, reading(file[:length]))


@pytest.mark.conformance("DV-07")
@pytest.mark.parametrize(("offset", "size"), [(2, 44), (1, 43), (1, 45), (1, 0), (99, 44)])
def test_a_wrong_offset_or_size_is_corruption(offset: int, size: int) -> None:
    file, _ = six_row_file(1)

    with pytest.raises(CorruptTableError, match="no vector of"):
        read_from_file(file, offset, size)


@pytest.mark.conformance("DV-07")
@pytest.mark.parametrize("version", [b"\x00\x01", b"\x01\x00"])
def test_a_file_with_a_two_byte_version_is_corruption(version: bytes) -> None:
    file, _ = six_row_file(1)

    with pytest.raises(CorruptTableError):
        read_from_file(version + file[1:], 1, 44)


@pytest.mark.conformance("DV-06")
@pytest.mark.parametrize("offset", [None, 0])
def test_an_absent_offset_means_the_start_of_the_file(offset: int | None) -> None:
    file, found = six_row_file(offset)

    assert list(load(found, reading(file))) == SIX_ROWS
    assert list(load(found, reading(file[1:]))) == SIX_ROWS


@pytest.mark.conformance("DV-10")
@pytest.mark.parametrize("cardinality", [0, 5, 7])
def test_a_wrong_cardinality_is_corruption_and_names_the_file(cardinality: int) -> None:
    file, _ = six_row_file(1)
    found = descriptor("u", "^-aqEH.-t@S}K{vb[*k^", offset=1, cardinality=cardinality)

    with pytest.raises(CorruptTableError, match="marks 6 rows") as caught:
        load(found, reading(file))
    assert caught.value.file == f"deletion_vector_{UUID_TEXT}.bin"


@pytest.mark.conformance("DV-11")
def test_a_missing_file_is_corruption_and_names_the_file() -> None:
    def read(path: str) -> bytes:
        raise FileNotFoundError(path)

    with pytest.raises(CorruptTableError, match="missing") as caught:
        load(descriptor("p", "s3://bucket/a%20b.bin"), read)
    assert caught.value.file == "s3://bucket/a b.bin"


WITHOUT_VECTOR_FILES = ("spark-table-with-dv-gigantic", "spark-table-with-dv-small")
"""Tables of the corpus of which only the log is there."""


def corpus_descriptors(corpus: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for commit in sorted(corpus.glob("*/_delta_log/*.json")):
        for line in commit.read_text().splitlines():
            if '"deletionVector"' not in line:
                continue
            action = json.loads(line)
            vector = (action.get("add") or action.get("remove") or {}).get("deletionVector")
            if vector:
                yield commit.parent.parent, vector


@pytest.mark.conformance("DV-04", "DV-05", "DV-07", "DV-08", "DV-10")
def test_every_vector_of_the_corpus_is_read(corpus: Path) -> None:
    read = {"u": 0, "p": 0, "i": 0}
    for table, value in corpus_descriptors(corpus):
        found = DeletionVectorDescriptor.from_json(value)
        absolute = found.absolute_path()
        if absolute is not None:
            # Its folder is a blank that the tests of its origin fill in.
            absolute = f"folder&with%special char/{absolute.rpartition('/')[2]}"
        if table.name in WITHOUT_VECTOR_FILES:
            continue
        file = table / (absolute or found.relative_path() or "")
        bitmap = load(found, reading(file.read_bytes() if file.is_file() else b""))
        assert len(bitmap) == value["cardinality"]
        read[found.storage_type] += 1
    assert read == {"u": 145, "p": 1, "i": 6}


@pytest.mark.conformance("DV-09")
def test_the_inline_vector_with_filler_is_read(corpus: Path) -> None:
    commit = corpus / "kernelrs-cdf-table-with-dv/_delta_log/00000000000000000005.json"
    adds = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
    (value,) = [add["deletionVector"] for add in adds if add and "deletionVector" in add]

    assert value["pathOrInlineDv"].endswith("##093")
    assert list(load(DeletionVectorDescriptor.from_json(value), no_read)) == [3]
