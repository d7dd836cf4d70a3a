"""The files of `--queries`: one file, or a folder such as a rolled event log of Spark.

Files may be compressed by Zstandard, which Spark uses by default, or gzip. An event log can have
any size; its lines are read one after another.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import EntryKind

MOST_BYTES = 64 << 20
"""The size of the largest file with SQL, and of the largest event."""
EVENT = b'{"Event"'
"""The beginning of each line of an event log."""

_CODECS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
_OTHER_CODECS = {b"LZ4Block": "LZ4", b"\x82SNAPPY\x00": "Snappy", b"ZV": "LZF"}


def open_queries(
    address: str, storage_options: Mapping[str, str] | None
) -> Iterator[tuple[str, io.BufferedReader]]:
    """Yields the name and the contents of each file, in the order of their numbers.

    Raises `InvalidRequestError` if there is none, or for a codec that is not supported.
    """
    location = Address.parse(address)
    store = open_store(location.parent, storage_options)
    if store.stat(location.name) is not None:
        names = [location.name]
    else:
        entries = pa.concat_tables(store.list_tree(location.name))
        files = entries.filter(pc.equal(entries["kind"], int(EntryKind.FILE)))
        names = sorted(filter(_is_wanted, files["path"].to_pylist()), key=_by_number)
    if not names:
        raise InvalidRequestError(
            "the file with queries does not exist", file=address, remedy="correct its name"
        )
    for name in names:
        with store.open(name) as raw:
            yield name, _decompressed(store, name, raw)


def lines_of(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yields the lines up to `MOST_BYTES`. A file that is still being written ends before its last
    block.
    """
    is_whole = True
    while True:
        try:
            line = stream.readline(MOST_BYTES)
        except OSError:
            return
        if not line:
            return
        ends = line.endswith(b"\n")
        if is_whole and (ends or len(line) < MOST_BYTES):
            yield line
        is_whole = ends


def _decompressed(store: Store, name: str, raw: BinaryIO) -> io.BufferedReader:
    head = store.read_head(name, 8)
    for magic, other in _OTHER_CODECS.items():
        if head.startswith(magic):
            raise InvalidRequestError(
                f"the file with queries is compressed by {other}",
                file=name,
                remedy="decompress it, or set spark.eventLog.compression.codec to zstd",
            )
    source = pa.PythonFile(raw, "r")
    codecs = (codec for magic, codec in _CODECS.items() if head.startswith(magic))
    codec: str | None = next(codecs, None)
    return io.BufferedReader(source if codec is None else pa.CompressedInputStream(source, codec))


def _is_wanted(path: str) -> bool:
    # Beside the events of an application is the status of the application.
    name = path.rpartition("/")[2]
    return not name.startswith((".", "_", "appstatus_"))


def _by_number(path: str) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path)]
