"""Names of files in `_delta_log`: the only parser, and the names that this library writes.

Implements the rules for names in "Delta Log Entries", "Checkpoints", "Log Compaction Files",
"Version Checksum File" and "Last Checkpoint File". Names are relative to `_delta_log` and not
URI-encoded. All other names are `LogFileKind.UNKNOWN`; they are ignored and never deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Literal

from delta_maintenance.errors import InvalidRequestError

Encoding = Literal["json", "parquet"]

LAST_CHECKPOINT = "_last_checkpoint"
LAST_VACUUM_INFO = "_last_vacuum_info"
SIDECAR_DIRECTORY = "_sidecars"
STAGED_COMMIT_DIRECTORY = "_staged_commits"
GUARDED_PREFIX = "_guarded."

MAX_VERSION = 2**63 - 1
"""Versions are signed 64-bit numbers, although 20 digits could represent more."""


class LogFileKind(Enum):
    """The kind of a file in the log directory."""

    COMMIT = auto()
    CLASSIC_CHECKPOINT = auto()
    MULTIPART_CHECKPOINT = auto()
    UUID_CHECKPOINT = auto()
    COMPACTION = auto()
    CHECKSUM = auto()
    """`N.crc`, the version checksum."""
    LAST_CHECKPOINT = auto()
    LAST_VACUUM_INFO = auto()
    SIDECAR = auto()
    STAGED_COMMIT = auto()
    HADOOP_CHECKSUM = auto()
    """`.<name>.crc`, written by Hadoop's local file system next to each of its files."""
    TEMPORARY = auto()
    GUARDED_COPY = auto()
    """A copy of a commit of this library, from before the commit was put."""
    GUARDED_MARK = auto()
    """The mark beside a copy whose commit the store has created."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A parsed file name. Fields that the kind does not have are None."""

    name: str
    """Relative to `_delta_log`."""
    kind: LogFileKind
    version: int | None = None
    """For a log compaction, the first version of its range."""
    end_version: int | None = None
    """The last version of a log compaction's range, inclusive."""
    part: int | None = None
    """Starts at 1."""
    parts: int | None = None
    uuid: str | None = None
    """36 characters, in upper or lower case as in the name; of a guarded copy, the `txnId`."""
    encoding: Encoding | None = None


def parse_log_file_name(name: str) -> LogFile:
    """The kind and parts of the file `name`, relative to `_delta_log`. Never raises."""
    for kind, encoding, pattern in _PATTERNS:
        match = _compile_pattern(pattern).fullmatch(name)
        if match is None:
            continue
        groups = match.groupdict()
        file = LogFile(
            name=name,
            kind=kind,
            version=_number(groups.get("version")),
            end_version=_number(groups.get("end_version")),
            part=_number(groups.get("part")),
            parts=_number(groups.get("parts")),
            uuid=groups.get("uuid"),
            encoding=encoding,
        )
        return file if _is_valid(file) else LogFile(name=name, kind=LogFileKind.UNKNOWN)
    return LogFile(name=name, kind=LogFileKind.UNKNOWN)


def version_prefix(version: int) -> str:
    """The 20 digits with which all file names of a version start; a start for sorted listings."""
    if not 0 <= version <= MAX_VERSION:
        raise InvalidRequestError(
            f"{version} is not a table version", remedy="use a number from 0 to 2^63 - 1"
        )
    return f"{version:020d}"


def commit_name(version: int) -> str:
    """`N.json`."""
    return f"{version_prefix(version)}.json"


def classic_checkpoint_name(version: int) -> str:
    """`N.checkpoint.parquet`."""
    return f"{version_prefix(version)}.checkpoint.parquet"


def multipart_checkpoint_name(version: int, number: int, count: int) -> str:
    """`N.checkpoint.o.p.parquet`. `count` must be at least 2; one part is a classic checkpoint."""
    if not 1 <= number <= count < 10**10 or count < 2:
        raise InvalidRequestError(f"a multi-part checkpoint has no part {number} of {count}")
    return f"{version_prefix(version)}.checkpoint.{number:010d}.{count:010d}.parquet"


def uuid_checkpoint_name(version: int, uuid: str, encoding: Encoding) -> str:
    """`N.checkpoint.<uuid>.json` or `.parquet`, the top-level file of a V2 checkpoint."""
    return f"{version_prefix(version)}.checkpoint.{_checked_uuid(uuid)}.{encoding}"


def compaction_name(start: int, end: int) -> str:
    """`x.y.compacted.json` for the commits from `start` to `end`, inclusive; `end` > `start`."""
    if end <= start:
        raise InvalidRequestError(f"a log compaction cannot cover the versions {start} to {end}")
    return f"{version_prefix(start)}.{version_prefix(end)}.compacted.json"


def checksum_name(version: int) -> str:
    """`N.crc`."""
    return f"{version_prefix(version)}.crc"


def guarded_names(version: int, txn_id: str) -> tuple[str, str]:
    """The names of the copy of a commit and of its mark, which no reader of Delta tables opens.

    They are listed after all versions. They do not end in `.json`, because ClickHouse reads each
    such file of the log as a commit.
    """
    name = f"{GUARDED_PREFIX}{version_prefix(version)}.{txn_id}"
    return f"{name}.copy", f"{name}.landed"


def hadoop_checksum_name(name: str) -> str:
    """The name of the file in which Hadoop's local file system stores the checksum of `name`."""
    directory, slash, bare = name.rpartition("/")
    return f"{directory}{slash}.{bare}.crc"


_VERSION = r"(?P<version>[0-9]{20})"
_PART = r"(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})"
_UUID_FORM = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_UUID = rf"(?P<uuid>{_UUID_FORM})"
_GUARDED = rf"_guarded\.{_VERSION}\.(?P<uuid>[^./]+)"
# The protocol defines files only in these two folders.
_FOLDER = rf"(?:(?:{SIDECAR_DIRECTORY}|{STAGED_COMMIT_DIRECTORY})/)?"

_PATTERNS: tuple[tuple[LogFileKind, Encoding | None, str], ...] = (
    (LogFileKind.COMMIT, "json", rf"{_VERSION}\.json"),
    (LogFileKind.CHECKSUM, None, rf"{_VERSION}\.crc"),
    (LogFileKind.CLASSIC_CHECKPOINT, "parquet", rf"{_VERSION}\.checkpoint\.parquet"),
    (LogFileKind.MULTIPART_CHECKPOINT, "parquet", rf"{_VERSION}\.checkpoint\.{_PART}\.parquet"),
    (LogFileKind.UUID_CHECKPOINT, "json", rf"{_VERSION}\.checkpoint\.{_UUID}\.json"),
    (LogFileKind.UUID_CHECKPOINT, "parquet", rf"{_VERSION}\.checkpoint\.{_UUID}\.parquet"),
    (LogFileKind.COMPACTION, "json", rf"{_VERSION}\.(?P<end_version>[0-9]{{20}})\.compacted\.json"),
    (LogFileKind.LAST_CHECKPOINT, None, LAST_CHECKPOINT),
    (LogFileKind.LAST_VACUUM_INFO, None, LAST_VACUUM_INFO),
    (LogFileKind.STAGED_COMMIT, "json", rf"{STAGED_COMMIT_DIRECTORY}/{_VERSION}\.{_UUID}\.json"),
    (
        LogFileKind.SIDECAR,
        "parquet",
        rf"{SIDECAR_DIRECTORY}/{_VERSION}\.checkpoint\.{_PART}\.{_UUID}\.parquet",
    ),
    # The protocol does not prescribe names of sidecars; only the manifest refers to them.
    (LogFileKind.SIDECAR, "parquet", rf"{SIDECAR_DIRECTORY}/[^./][^/]*\.parquet"),
    (LogFileKind.GUARDED_COPY, None, rf"{_GUARDED}\.copy"),
    (LogFileKind.GUARDED_MARK, None, rf"{_GUARDED}\.landed"),
    (LogFileKind.HADOOP_CHECKSUM, None, rf"{_FOLDER}\.[^/]+\.crc"),
    (LogFileKind.TEMPORARY, None, rf"{_FOLDER}\.[^/]+\.tmp"),
    (LogFileKind.TEMPORARY, None, rf"{_FOLDER}[0-9]{{20}}(?:\.[^/]+)?\.tmp"),
    (LogFileKind.TEMPORARY, None, rf"{_FOLDER}_commit_{_UUID_FORM}\.json\.tmp"),
)


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    # Compiled on first use: most logs contain little else than commits.
    return re.compile(pattern)


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


def _is_valid(file: LogFile) -> bool:
    if file.version is not None and file.version > MAX_VERSION:
        return False
    if file.end_version is not None and file.version is not None:
        return file.version < file.end_version <= MAX_VERSION
    if file.part is not None and file.parts is not None:
        return 1 <= file.part <= file.parts
    return True


def _checked_uuid(uuid: str) -> str:
    if re.fullmatch(_UUID_FORM, uuid) is None:
        raise InvalidRequestError(f"{uuid!r} is not a UUID")
    return uuid
