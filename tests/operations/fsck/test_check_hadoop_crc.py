"""Hadoop's checksums of the files of a log."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from delta_maintenance.address import Address
from delta_maintenance.operations.fsck.checks import log as hadoop_checksums
from delta_maintenance.operations.fsck.checks.log import check_hadoop_checksums
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.delta_log import commit_name, hadoop_checksum_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read.log_inventory import take_inventory

COMMIT = f"_delta_log/{commit_name(0)}"
NAME = hadoop_checksum_name(COMMIT)
DATA = bytes(range(256)) * 5


def stated(data: bytes, *, every: int = 512) -> bytes:
    sums = [zlib.crc32(data[at : at + every]) for at in range(0, len(data), every)]
    return struct.pack(f">4sI{len(sums)}I", b"crc\0", every, *sums)


def found(store: Store) -> list[str | None]:
    findings = Findings()
    check_hadoop_checksums(store, take_inventory(store), findings)
    return [finding.path for finding in findings.first(20)]


@pytest.mark.parametrize(
    ("checksum", "stale"),
    [
        (stated(DATA), False),
        (stated(DATA, every=1), False),
        (stated(DATA, every=1 << 20), False),
        (stated(DATA[:-1] + b"x"), True),
        (stated(DATA + b"x"), True),
        (stated(DATA)[:-4], True),
        (stated(DATA) + b"0000", True),
        (b"crc\0\0\0\0\0", True),
        (b"CRC" + stated(DATA)[3:], True),
        (b"", True),
    ],
)
def test_a_checksum_of_another_file_is_found(checksum: bytes, stale: bool, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(COMMIT, DATA)
    store.put(NAME, checksum)
    assert found(store) == [COMMIT] * stale


def test_the_checksum_of_an_empty_file_has_no_sums(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(COMMIT, b"")
    store.put(NAME, stated(b""))
    assert found(store) == []


def test_the_checksum_of_a_missing_file_is_harmless(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(NAME, stated(DATA))
    assert found(store) == []


@pytest.mark.parametrize(("other", "stale"), [(DATA[::-1], False), (DATA * 2, True)])
def test_for_a_large_file_only_the_length_is_compared(
    other: bytes, stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hadoop_checksums, "_MOST_BYTES", len(DATA) - 1)
    store = LocalStore(tmp_path)
    store.put(COMMIT, DATA)
    store.put(NAME, stated(other))
    assert found(store) == [COMMIT] * stale


def test_checksums_in_a_bucket_have_no_effect() -> None:
    store = MemoryStore()
    store.address = Address.parse("s3://bucket/table")
    store.put(COMMIT, DATA)
    store.put(NAME, stated(b""))
    assert found(store) == []
