"""How much memory reading one file of a log may take, whatever the file says about itself.

A log is written by others. A few bytes of Parquet can stand for gigabytes of text, and one line of
JSON can be as long as a disk. Every reader of a log file therefore asks these limits before it
decodes anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from delta_maintenance.errors import InvalidRequestError

LOG_MEMORY_VARIABLE = "DELTA_MAINTENANCE_LOG_MEMORY"
"""The environment variable that sets `ReadLimits.log_memory`: bytes, or as in `6GiB`."""
DEFAULT_LOG_MEMORY = 4 << 30
_LEAST_LOG_MEMORY = 64 << 20
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,18}) *([a-z]*)", re.IGNORECASE)

MOST_NESTING = 128
"""How deep objects and lists of a line of JSON may be nested."""
MOST_PARTITION_COLUMNS = 1000
_ROWS_PER_BYTE = 64
_EXPANSION = 1000


class Limited(Protocol):
    """Something whose files are read within limits of its own, or those of the environment."""

    read_limits: ReadLimits | None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What a reader takes of one file of a log. All sizes are bytes."""

    log_memory: int = DEFAULT_LOG_MEMORY
    """What one file may take in memory while it is read, its text and its columns together."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ReadLimits:
        """The limits that the process's environment asks for.

        `InvalidRequestError` for a value that is no size, or less than 64 MiB.
        """
        values = os.environ if environment is None else environment
        text = values.get(LOG_MEMORY_VARIABLE, "").strip()
        return cls(_parse_size(text)) if text else cls()

    @classmethod
    def of(cls, store: Limited) -> ReadLimits:
        """The limits for the tables of a store."""
        return store.read_limits or cls.from_environment()

    @property
    def text_bytes(self) -> int:
        """Of a JSON file, which is held whole together with its columns."""
        return self.log_memory // 3

    @property
    def hint_bytes(self) -> int:
        """Of a file that makes reading quicker: `_last_checkpoint`, a checksum, a vacuum's note."""
        return self.log_memory // 64

    @property
    def value_bytes(self) -> int:
        """Of one value: a line of JSON, or a text in a Parquet column."""
        return self.log_memory // 64

    @property
    def footer_bytes(self) -> int:
        """Of the footer of a Parquet file; its metadata take about ten times as much."""
        return self.log_memory // 64

    @property
    def page_bytes(self) -> int:
        """Of a page of a Parquet file after decompression."""
        return self.log_memory // 8

    @property
    def batch_bytes(self) -> int:
        """Of the rows of a Parquet file that are decoded together."""
        return self.log_memory // 16

    def rows(self, file_size: int) -> int:
        """How many rows a Parquet file of so many bytes may claim to have.

        Every row names another file, so none is free of cost.
        """
        return 1000 + _ROWS_PER_BYTE * file_size

    def decoded_bytes(self, file_size: int) -> int:
        """How many bytes all rows of a Parquet file of so many bytes may become, in turn."""
        return self.log_memory + _EXPANSION * file_size

    def remedy(self) -> str:
        """What to do where a sound file is over a limit."""
        return (
            f"set {LOG_MEMORY_VARIABLE} (--log-memory) above {self.log_memory} bytes if the file "
            "is sound, and restore it from a backup otherwise"
        )


@contextmanager
def default_log_memory(text: str | None) -> Iterator[None]:
    """Reads logs within a size such as `6GiB`, in this process and those that it starts.

    None leaves the limit of the environment. `InvalidRequestError` as `from_environment`.
    """
    if text is None:
        yield
        return
    _parse_size(text.strip())
    before = os.environ.get(LOG_MEMORY_VARIABLE)
    os.environ[LOG_MEMORY_VARIABLE] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOG_MEMORY_VARIABLE]
        else:
            os.environ[LOG_MEMORY_VARIABLE] = before


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match is not None else None
    size = int(match[1]) * unit if match is not None and unit is not None else 0
    if size < _LEAST_LOG_MEMORY:
        raise InvalidRequestError(
            f"{LOG_MEMORY_VARIABLE} is {text[:40]!r}",
            remedy="give a size of at least 64MiB, such as 6GiB",
        )
    return size
