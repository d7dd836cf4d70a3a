"""Where new data files go, and how the log spells their paths ("Data Files", "Add File").

A path in the log is a URI: it is encoded once over the literal name of the object, whatever that
name looks like. The folder of a partition has escapes of its own, which are part of the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from delta_maintenance.protocol.schema.types import ColumnMappingMode

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of a null partition value, and of an empty one."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^") | {
    chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))
}
"""What Hive escapes, and the other control characters, which stores refuse in names."""
_LONGEST = 200
"""Bytes of a folder's name: file systems take 255."""
_PLAIN = "/=!$&'()*+,;@"
"""What a path may hold beside letters, digits and `-._~` without an escape."""


def partition_folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str | None:
    """The folder of a partition as Hive writes it, empty for a table without partitions.

    `columns` are the partition columns in their order, by the names that `values` has them under.
    None where that would be a hidden folder or one whose name is too long; as folders mean nothing,
    any other will do.
    """
    names = [f"{_escaped(name)}={_folder_value(values.get(name))}" for name in columns]
    if any(name[0] in "_." or len(name.encode()) > _LONGEST for name in names):
        return None
    return "/".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNaming:
    """The folders of a table's new data files. Travels to executors."""

    partition_columns: tuple[str, ...]
    """Physical names."""
    prefix_length: int | None = None
    """Of the folders that spread files over a store; None for the folders of partitions."""

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, str],
        partition_columns: Sequence[str],
        mode: ColumnMappingMode,
    ) -> FileNaming:
        """By `delta.randomizeFilePrefixes` and `delta.randomPrefixLength`; tables with column
        mapping always spread their files, for their columns may be renamed."""
        spread = configuration.get("delta.randomizeFilePrefixes", "").lower() == "true"
        text = configuration.get("delta.randomPrefixLength", "")
        length = int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 3 else 2
        return cls(
            partition_columns=tuple(partition_columns),
            prefix_length=min(max(length, 1), 32) if spread or mode != "none" else None,
        )

    def name(
        self, values: Mapping[str, str | None], number: int, identifier: str, codec: str
    ) -> str:
        """The name in the store of the data file of a partition. `identifier` is a new UUID."""
        folder = None
        if self.prefix_length is None:
            folder = partition_folder(values, self.partition_columns)
        if folder is None:
            folder = identifier.replace("-", "")[: self.prefix_length or 2]
        file = data_file_name(number, identifier, codec)
        return f"{folder}/{file}" if folder else file


def data_file_name(number: int, identifier: str, codec: str) -> str:
    """The name of a new data file, unique by its UUID."""
    suffix = "" if codec in ("none", "uncompressed") else f".{codec}"
    return f"part-{number:05d}-{identifier}-c000{suffix}.parquet"


def log_path(name: str) -> str:
    """The path in the log of the object that is called `name`, relative to the table's root."""
    return quote(name, safe=_PLAIN)


def _folder_value(value: str | None) -> str:
    return _escaped(value) if value else NULL_PARTITION


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
