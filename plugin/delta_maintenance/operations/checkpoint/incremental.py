"""Whether a checkpoint takes over sidecars of the one before, or is written in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.checkpoint.options import Incremental
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    NotReusableError,
    ReuseSurvey,
    require_reusable,
    survey_reuse,
)

_WORTHWHILE = 0.75
"""Of the bytes of a full checkpoint. What is taken over stays in files that may be small, and
expired tombstones with it: for little less work that is not worth it."""

_CLEAN_UP_MARGIN = timedelta(days=1)
"""For differences between clocks, and for the time from the plan to the published checkpoint."""

_CHECKPOINT_BYTES_PER_LOG_BYTE = 0.12
"""About as many as the statistics of usual tables shrink to, in Parquet, beside those in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the sidecars of a checkpoint come about, and why."""

    incremental: bool
    reason: str
    """One clause."""
    full_bytes: int
    """Expected of a full checkpoint."""
    incremental_bytes: int | None = None
    """Expected of an incremental one; None where that is not known or not possible."""
    survey: ReuseSurvey | None = None
    """Of an incremental checkpoint: what it takes over, where that has been looked at."""


def decide(
    snapshot: Snapshot,
    spec: CheckpointSpec,
    wanted: Incremental,
    *,
    now: datetime | None = None,
    survey: Callable[[Snapshot, CheckpointSpec], ReuseSurvey] = survey_reuse,
) -> Decision:
    """Looks at the newest checkpoint and the commits since, where `wanted` asks for it.

    `now` is None when a plan is carried out, which has looked at the age of the version.
    `RefusedError` where an incremental checkpoint is asked for that is not possible.
    """
    if wanted == "never":
        return _in_full(snapshot, "as asked for")
    try:
        if now is not None:
            _require_young(snapshot, now)
        found = survey(snapshot, spec)
    except (NotReusableError, UnusableCheckpointError) as error:
        return _impossible(snapshot, wanted, error)
    full, incremental = found.expected_full_bytes, found.expected_bytes
    described = (
        f"{len(found.kept)} of {len(found.sidecars)} sidecars of {found.base.files.name} can be "
        f"taken over, {len(found.rewritten)} have to be written anew"
    )
    is_cheap = incremental <= _WORTHWHILE * full
    if wanted == "auto" and not is_cheap:
        decision = _in_full(snapshot, f"since {described}")
        return replace(decision, full_bytes=full, incremental_bytes=incremental)
    return Decision(
        incremental=True,
        reason=f"incremental: {described}",
        full_bytes=full,
        incremental_bytes=incremental,
        survey=found,
    )


def foresee(
    snapshot: Snapshot, spec: CheckpointSpec, wanted: Incremental, *, now: datetime
) -> Decision:
    """The same without a look at sidecars and commits, which is left to the executors of Spark."""
    if wanted == "never":
        return _in_full(snapshot, "as asked for")
    try:
        _require_young(snapshot, now)
        base = require_reusable(snapshot, spec)
    except (NotReusableError, UnusableCheckpointError) as error:
        return _impossible(snapshot, wanted, error)
    return Decision(
        incremental=True,
        reason=f"incremental, if few sidecars of {base.files.name} turn out to be touched",
        full_bytes=_full_bytes(snapshot),
    )


def _require_young(snapshot: Snapshot, now: datetime) -> None:
    """`NotReusableError` if a clean-up may already keep this version's checkpoint alone.

    An incremental checkpoint is withdrawn if it was published while a clean-up deleted the sidecars
    that it takes over. That is safe only if no clean-up has relied on it in the meantime, and a
    clean-up relies only on checkpoints of versions whose log retention has ended.
    """
    if snapshot.checkpoint is None or not snapshot.checkpoint.is_v2:
        return  # nothing can be taken over anyway
    retention = snapshot.properties.log_retention
    least_ms = epoch_millis(now) - (retention - _CLEAN_UP_MARGIN) // timedelta(milliseconds=1)
    if snapshot.timestamp_ms is None or snapshot.timestamp_ms < least_ms:
        raise NotReusableError(
            f"the log retention of version {snapshot.version}, {retention}, ends within "
            f"{_CLEAN_UP_MARGIN} or has ended"
        )


def _impossible(
    snapshot: Snapshot, wanted: Incremental, error: NotReusableError | UnusableCheckpointError
) -> Decision:
    why = error.problem if isinstance(error, UnusableCheckpointError) else error
    if wanted == "always":
        raise RefusedError(
            f"an incremental checkpoint is not possible: {why}",
            table=snapshot.table,
            version=snapshot.version,
            remedy="ask for incremental auto or never, which write it in full",
        ) from None
    return _in_full(snapshot, f"since {why}")


def _in_full(snapshot: Snapshot, why: str) -> Decision:
    return Decision(incremental=False, reason=f"in full, {why}", full_bytes=_full_bytes(snapshot))


def _full_bytes(snapshot: Snapshot) -> int:
    tail = sum(entry.status.size for entry in snapshot.segment.tail)
    base = 0 if snapshot.checkpoint is None else snapshot.checkpoint.size_bytes
    return base + int(_CHECKPOINT_BYTES_PER_LOG_BYTE * tail)
