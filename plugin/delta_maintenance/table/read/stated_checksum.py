"""The version checksum file of a version, which is a hint and proves nothing."""

from __future__ import annotations

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log.file_names import checksum_name
from delta_maintenance.protocol.delta_log.version_checksum import VersionChecksum, parse_checksum
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.segment import LOG_DIRECTORY


def stated_checksum(store: Store, version: int) -> VersionChecksum | None:
    """Reads the checksum of a version with one request; None if it is missing or invalid."""
    try:
        return parse_checksum(store.read(f"{LOG_DIRECTORY}/{checksum_name(version)}"))
    except (FileNotFoundError, CorruptTableError):
        return None


def stated_files(store: Store, version: int) -> tuple[int, int] | None:
    """Returns the number of live files and their bytes, if the checksum of a version
    contains both.
    """
    stated = stated_checksum(store, version)
    if stated is None or stated.num_files is None or stated.table_size is None:
        return None
    return stated.num_files, stated.table_size
