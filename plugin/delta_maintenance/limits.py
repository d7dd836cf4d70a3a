"""Limits for the memory that reading one file of a log may take, whatever its contents.

Logs can come from untrusted writers. A few bytes of Parquet can expand to gigabytes, and one line
of JSON can have any length. Every reader of a log file checks these limits before it decodes
anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.quantities import parse_size

LOG_MEMORY_VARIABLE = "DELTA_MAINTENANCE_LOG_MEMORY"
"""The environment variable for `ReadLimits.log_memory`: bytes, or a size such as `6GiB`."""
DEFAULT_LOG_MEMORY = 4 << 30
_LEAST_LOG_MEMORY = 64 << 20

MOST_NESTING = 128
"""The maximum nesting depth of objects and lists in a line of JSON."""
MOST_SCHEMA_LEVELS = 98
"""The maximum nesting depth of a schema: one level for a struct, two for an array or a map. Arrow
reads no deeper Parquet file.
"""
MOST_PARTITION_COLUMNS = 1000
_ROWS_PER_BYTE = 64
_EXPANSION = 1000


class Limited(Protocol):
    """An object with its own limits for its files, or None for those of the environment."""

    read_limits: ReadLimits | None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for one file of a log. All sizes are in bytes."""

    log_memory: int = DEFAULT_LOG_MEMORY
    """The memory that one file may take while it is read, text and columns together."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ReadLimits:
        """Returns the limits that the environment sets.

        `InvalidRequestError` for a value that is not a size, or is less than 64 MiB.
        """
        values = os.environ if environment is None else environment
        text = values.get(LOG_MEMORY_VARIABLE, "").strip()
        return cls(_parse_log_memory(text)) if text else cls()

    @classmethod
    def of(cls, store: Limited) -> ReadLimits:
        """Returns the limits for the tables of a store."""
        return store.read_limits or cls.from_environment()

    @property
    def text_bytes(self) -> int:
        """The maximum size of a JSON file, which is held in memory together with its columns."""
        return self.log_memory // 3

    @property
    def hint_bytes(self) -> int:
        """The maximum size of an optional file: `_last_checkpoint`, a checksum, the progress of a
        vacuum.
        """
        return self.log_memory // 64

    @property
    def value_bytes(self) -> int:
        """The maximum size of one value: a line of JSON, or a string in a Parquet column."""
        return self.log_memory // 64

    @property
    def footer_bytes(self) -> int:
        """The maximum size of a Parquet footer."""
        return self.log_memory // 64

    @property
    def decoded_footer_bytes(self) -> int:
        """The maximum memory of a decoded Parquet footer, usually ten times its size."""
        return self.log_memory // 4

    @property
    def page_bytes(self) -> int:
        """The maximum size of a Parquet page after decompression."""
        return self.log_memory // 8

    @property
    def batch_bytes(self) -> int:
        """The maximum size of the Parquet rows that are decoded together."""
        return self.log_memory // 16

    def rows(self, file_size: int) -> int:
        """The maximum number of rows that a Parquet file of this size may contain.

        Every row names another file, so a row takes a minimum of space.
        """
        return 1000 + _ROWS_PER_BYTE * file_size

    def decoded_bytes(self, file_size: int) -> int:
        """The maximum total size of the decoded rows of a Parquet file of this size."""
        return self.log_memory + _EXPANSION * file_size

    def remedy(self) -> str:
        """The remedy if a sound file exceeds a limit."""
        return (
            f"set {LOG_MEMORY_VARIABLE} (--log-memory) above {self.log_memory} bytes if the file "
            "is sound, and restore it from a backup otherwise"
        )


@contextmanager
def default_log_memory(text: str | None) -> Iterator[None]:
    """Sets the limit for reading logs, such as `6GiB`, in this process and its children.

    None keeps the limit of the environment. `InvalidRequestError` as in `from_environment`.
    """
    if text is None:
        yield
        return
    _parse_log_memory(text)
    before = os.environ.get(LOG_MEMORY_VARIABLE)
    os.environ[LOG_MEMORY_VARIABLE] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOG_MEMORY_VARIABLE]
        else:
            os.environ[LOG_MEMORY_VARIABLE] = before


def _parse_log_memory(text: str) -> int:
    try:
        size = parse_size(text)
    except InvalidRequestError:
        size = 0
    if size < _LEAST_LOG_MEMORY:
        raise InvalidRequestError(
            f"{LOG_MEMORY_VARIABLE} is {text[:40]!r}",
            remedy="give a size of at least 64MiB, such as 6GiB",
        )
    return size
