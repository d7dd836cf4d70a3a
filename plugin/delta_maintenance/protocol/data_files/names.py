"""Names of new data files, and their paths in the log ("Data Files", "Add File").

A path in the log is a URI: the literal name of the object, encoded once. The folder of a partition
contains escapes of its own, which are part of the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from delta_maintenance.protocol.schema.types import ColumnMappingMode

CHANGE_DATA = "_change_data"
"""The folder of change data files ("Change Data Files")."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of a null or empty partition value."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^") | {
    chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))
}
"""The characters that Hive escapes, and control characters, which stores refuse in names."""
_LONGEST = 200
"""The maximum length of a folder name in bytes; file systems allow 255."""
_PLAIN = "/=!$&'()*+,;@"
"""The characters that a path may contain unescaped, besides letters, digits and `-._~`."""


def partition_folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str | None:
    """Returns the folder of a partition in the format of Hive; empty without partitions.

    `columns` are the keys of `values`, in the order of partitioning. None if the folder would be
    hidden or its name too long. Readers ignore folder names, so any other folder is then valid.
    """
    folder = hive_folder(values, columns)
    if any(n.startswith(("_", ".")) or len(n.encode()) > _LONGEST for n in folder.split("/")):
        return None
    return folder


def hive_folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str:
    """Like `partition_folder`, for the names that other engines expect, whatever they are."""
    return "/".join(f"{_escape_name(name)}={_folder_value(values.get(name))}" for name in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNaming:
    """Chooses the folders of new data files. Can be sent to executors."""

    partition_columns: tuple[str, ...]
    """Physical names."""
    prefix_length: int | None = None
    """The length of random folder names; None to use partition folders."""
    of_changes: bool = False
    """Whether the files are change data files, which have a folder of their own."""

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, str],
        partition_columns: Sequence[str],
        mode: ColumnMappingMode,
    ) -> FileNaming:
        """Applies `delta.randomizeFilePrefixes` and `delta.randomPrefixLength`.

        Tables with column mapping always get random folders, because their columns can be renamed.
        """
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
        """Returns the object name of a partition's data file. `identifier` is a new UUID."""
        folder = None
        if self.prefix_length is None:
            folder = partition_folder(values, self.partition_columns)
        if folder is None:
            folder = identifier.replace("-", "")[: self.prefix_length or 2]
        file = data_file_name(number, identifier, codec)
        folders = (CHANGE_DATA if self.of_changes else "", folder, file)
        return "/".join(step for step in folders if step)


def data_file_name(number: int, identifier: str, codec: str) -> str:
    """Returns the file name of a new data file; its UUID makes it unique."""
    suffix = "" if codec in ("none", "uncompressed") else f".{codec}"
    return f"part-{number:05d}-{identifier}-c000{suffix}.parquet"


def log_path(name: str) -> str:
    """Returns the path in the log of an object, relative to the table's root."""
    return quote(name, safe=_PLAIN)


def _folder_value(value: str | None) -> str:
    return _escape_name(value) if value else NULL_PARTITION


def _escape_name(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
