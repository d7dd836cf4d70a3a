"""Page headers: fields that this release does not know are skipped, and invalid ones refused."""

from __future__ import annotations

import pytest

from delta_maintenance.table.data.parquet.pages import MalformedPageError, pages_of
from delta_maintenance.table.data.parquet.thrift import BINARY, I32, LIST, STRUCT, ListValue, Struct
from delta_maintenance.table.data.parquet.thrift import struct_bytes as thrift

BODY = b"12345678"


def header(*, unknown: Struct | ListValue | bytes, kind: int) -> bytes:
    inner = Struct({1: (I32, 2), 2: (I32, 0), 9: (kind, unknown)})
    fields = {1: (I32, 0), 2: (I32, len(BODY)), 3: (I32, len(BODY)), 5: (STRUCT, inner)}
    return thrift(Struct({**fields, 20: (kind, unknown)}))


@pytest.mark.parametrize(
    ("unknown", "kind"),
    [
        (ListValue(BINARY, [b"a", b"bc"]), LIST),
        (ListValue(STRUCT, [Struct({1: (I32, 7)})]), LIST),
        (Struct({1: (STRUCT, Struct({3: (BINARY, b"x")}))}), STRUCT),
        (b"text", BINARY),
    ],
    ids=str,
)
def test_unknown_fields_of_a_page_header_are_skipped(
    unknown: Struct | ListValue | bytes, kind: int
) -> None:
    data = header(unknown=unknown, kind=kind)
    [page] = pages_of(memoryview(data + BODY), values=2)
    assert (page.start, page.stored, page.values) == (len(data), len(BODY), 2)
    for end in range(len(data)):
        with pytest.raises(MalformedPageError):
            list(pages_of(memoryview(data[:end]), values=2))


@pytest.mark.parametrize("kind", [0, 14, 15])
def test_a_type_that_thrift_does_not_have_is_refused(kind: int) -> None:
    with pytest.raises(MalformedPageError, match="type"):
        list(pages_of(memoryview(bytes([0x10 | kind]) + bytes(8)), values=1))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kinds", [0x33, 0x11, 0x37, 0x38])
def test_a_map_ends_with_the_bytes_whatever_its_count_says(kinds: int) -> None:
    count = b"\xff" * 8 + b"\x7f"
    with pytest.raises(MalformedPageError, match="truncated"):
        list(pages_of(memoryview(b"\x1b" + count + bytes([kinds]) + bytes(20)), values=1))
