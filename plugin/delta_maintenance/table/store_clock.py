"""The clock of a table's store. Ages are differences between it and the clock of this machine, so
whatever ends with age asks here first.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from delta_maintenance.clock import SKEW, NewId, epoch_millis, instant
from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot


def passed_time(snapshot: Snapshot, now: datetime) -> datetime:
    """Returns an instant that has certainly passed: `now`, or the time that the store gave to the
    newest file of the log, if that is earlier. Takes no request.

    For what need not be refused while the clock of this machine is fast.
    """
    segment = snapshot.log.segment
    checkpoint = () if segment.checkpoint is None else segment.checkpoint.entries
    last_commit = () if segment.last_commit is None else (segment.last_commit,)
    newest = max(
        entry.status.modified_ms for entry in (*segment.commits, *checkpoint, *last_commit)
    )
    return min(now, instant(newest))


def require_same_clock(
    store: Store,
    now: datetime,
    *,
    new_id: NewId,
    planned_at: datetime,
    listed: Snapshot | None = None,
) -> None:
    """Raises `RefusedError` unless the store's clock agrees with the clock of this machine, and the
    plan was not made later than now.

    The check writes a temporary file; if this process dies, `clean-log` deletes it. It takes no
    request if the log that was just `listed` has a file of the last minutes.
    """
    if planned_at - now > SKEW:
        raise RefusedError(
            f"the plan was made {planned_at - now} from now, by a clock that was wrong, or is now",
            remedy="correct the clock and plan again",
        )
    if listed is not None and now - passed_time(listed, now) <= SKEW:
        return
    path = f"{LOG_DIRECTORY}/.{new_id()}.tmp"
    # Empty, because a vacuum makes room where there is none for a byte.
    if store.put_if_absent(path, b"") is not Put.DONE:
        raise StorageError("a file with a new name exists already", file=path)
    status = store.stat(path)
    store.delete(path)
    if status is None:
        raise StorageError("a file no longer exists immediately after it was written", file=path)
    skew = timedelta(milliseconds=status.modified_ms - epoch_millis(now))
    if abs(skew) > SKEW:
        raise RefusedError(
            f"the clocks of the store and of this machine differ by {abs(skew)}",
            remedy="correct the wrong clock; until then nothing is deleted by its age",
        )
