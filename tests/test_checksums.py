"""CRC-32 is that of zlib, with and without ISA-L."""

from __future__ import annotations

import sys
import zlib
from importlib import reload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance import checksums


@given(st.binary(max_size=9000), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(data: bytes, start: int) -> None:
    assert checksums.crc32(data, start) == zlib.crc32(data, start)
    assert checksums.crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])


def test_zlib_serves_where_isal_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("isal", reason="isal has no wheel for this processor")
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert reload(checksums).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        assert reload(checksums).crc32 is not zlib.crc32
