"""Which files of a log may go when its history is cut off at a checkpoint.

Implements "Metadata Cleanup" as far as it is about names and times. Instants are in milliseconds
since 1970-01-01 UTC throughout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from delta_maintenance.protocol.delta_log.file_names import (
    LogFile,
    LogFileKind,
    parse_log_file_name,
)

_BELOW = frozenset(
    {
        LogFileKind.COMMIT,
        LogFileKind.CHECKSUM,
        LogFileKind.CLASSIC_CHECKPOINT,
        LogFileKind.MULTIPART_CHECKPOINT,
        LogFileKind.UUID_CHECKPOINT,
    }
)
_UP_TO = frozenset({LogFileKind.COMPACTION, LogFileKind.STAGED_COMMIT})


def midnight_before(now: datetime, age: timedelta) -> datetime | None:
    """The last midnight, UTC, that is at least `age` ago; None where the calendar has none.

    Truncating to the day keeps what two runs of one day decide the same.
    """
    minute = minute_before(now, age)
    return None if minute is None else minute.replace(hour=0, minute=0)


def minute_before(now: datetime, age: timedelta) -> datetime | None:
    """The last full minute that is at least `age` ago; None where the calendar has none."""
    try:
        instant = now.astimezone(UTC) - age
    except OverflowError:
        return None
    return instant.replace(second=0, microsecond=0)


def commit_times(modified_ms: Mapping[int, int], *, now_ms: int) -> dict[int, int]:
    """The age that protects each commit, by version: its file's time, increasing with the version.

    A file no newer than the one before it counts as one millisecond newer, as Delta Spark has it.
    A time that no store can mean counts as now, and keeps the commit and all that follow.
    """
    times: dict[int, int] = {}
    previous: int | None = None
    for version in sorted(modified_ms):
        time = modified_ms[version] if modified_ms[version] > 0 else now_ms
        previous = time if previous is None else max(time, previous + 1)
        times[version] = previous
    return times


def newest_not_after(times: Mapping[int, int], instant_ms: int) -> int | None:
    """The newest version whose time is not after the instant; times increase with versions."""
    versions = sorted(times)
    position = bisect_right(versions, instant_ms, key=lambda version: times[version])
    return versions[position - 1] if position else None


def is_outdated(file: LogFile, cut_off: int) -> bool:
    """Whether a file is of no use once the oldest version is that of the checkpoint `cut_off`.

    The commit of that version stays with its checkpoint. A log compaction that starts at or before
    it stands for commits that readers no longer replay.
    """
    if file.version is None:
        return False
    if file.kind in _UP_TO:
        return file.version <= cut_off
    return file.kind in _BELOW and file.version < cut_off


def accompanied(file: LogFile) -> LogFile | None:
    """The file whose checksum Hadoop keeps in a file of this name."""
    if file.kind is not LogFileKind.HADOOP_CHECKSUM:
        return None
    directory, slash, name = file.name.rpartition("/")
    return parse_log_file_name(directory + slash + name[1:].removesuffix(".crc"))
