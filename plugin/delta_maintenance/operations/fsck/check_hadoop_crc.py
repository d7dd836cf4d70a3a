"""Compares files of the log with the checksums that Hadoop's local file system stored.

Hadoop writes `.<name>.crc` beside every file, and refuses to read a file that another program
replaced without updating the checksum.
"""

from __future__ import annotations

import struct

from delta_maintenance.address import StoreKind
from delta_maintenance.checksums import crc32
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.delta_log.file_names import LogFileKind, hadoop_checksum_name
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_inventory import LogInventory

_HEADER = struct.Struct(">4sI")
"""The magic number, and the number of bytes that each of the following checksums covers."""
_MAGIC = b"crc\0"
_MOST_BYTES = 4 << 20
"""The maximum size in bytes of a file that is read for this check; for larger ones only the length
is compared.
"""


def check_hadoop_checksums(store: Store, inventory: LogInventory, findings: Findings) -> None:
    """Finds files of the log that Hadoop's local file system refuses to read."""
    if store.address.kind not in (StoreKind.LOCAL, StoreKind.MEMORY):
        # Only the local file system uses these files; copies in a bucket have no effect.
        return
    sizes = {entry.path: entry.status.size for entry in inventory.entries}
    kept = {e.path for e in inventory.entries if e.file.kind is LogFileKind.HADOOP_CHECKSUM}
    for path, size in sizes.items():
        name = hadoop_checksum_name(path)
        # Checked twice, because the hint and then its checksum may be replaced between the two
        # reads.
        if name in kept and _differs(store, path, size, name) and _differs(store, path, size, name):
            findings.add(
                "stale-hadoop-checksum", f"the checksum {name} belongs to another file", path=path
            )


def _differs(store: Store, path: str, size: int, name: str) -> bool:
    try:
        stated = store.read(name)
        data = store.read(path) if size <= _MOST_BYTES else None
    except FileNotFoundError:
        return False
    if len(stated) < _HEADER.size:
        return True
    magic, length = _HEADER.unpack_from(stated)
    if magic != _MAGIC or not length:
        return True
    if data is None:
        expected: int = _HEADER.size + 4 * -(-size // length)
        return len(stated) != expected
    sums = [crc32(data[at : at + length]) for at in range(0, len(data), length)]
    return stated[_HEADER.size :] != struct.pack(f">{len(sums)}I", *sums)
