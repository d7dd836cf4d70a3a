"""Decides whether a checkpoint takes over sidecars of the previous one, or is written in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.checkpoint import Incremental
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.quantities import duration_text
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
"""The maximum share of the bytes of a full checkpoint that an incremental one may write. Sidecars
that are taken over may be small and keep their expired tombstones, which a small saving does not
justify.
"""

_CLEAN_UP_MARGIN = timedelta(days=1)
"""Covers clock skew, and the time from the decision to the published checkpoint."""

_CHECKPOINT_BYTES_PER_LOG_BYTE = 0.12
"""The approximate size ratio of a Parquet checkpoint and JSON commits, with typical statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a checkpoint is incremental, and why."""

    incremental: bool
    reason: str
    """The reason, as one clause."""
    full_bytes: int
    """The expected size of a full checkpoint in bytes."""
    incremental_bytes: int | None = None
    """The bytes that an incremental one is expected to write; None if unknown or impossible."""
    survey: ReuseSurvey | None = None
    """For an incremental checkpoint: the sidecars that it takes over, if they were examined."""


def decide(
    snapshot: Snapshot,
    spec: CheckpointSpec,
    wanted: Incremental,
    *,
    now: datetime,
    survey: Callable[[Snapshot, CheckpointSpec], ReuseSurvey] = survey_reuse,
) -> Verdict:
    """Decides from the newest checkpoint and the commits since, unless `wanted` is `never`.

    Raises `RefusedError` if `wanted` is `always` and an incremental checkpoint is not possible.
    """
    if wanted == "never":
        return _in_full(snapshot, "as asked for")
    try:
        _require_young(snapshot, now)
        sidecar_survey = survey(snapshot, spec)
    except (NotReusableError, UnusableCheckpointError) as error:
        return _impossible(snapshot, wanted, error)
    full, incremental = sidecar_survey.expected_full_bytes, sidecar_survey.expected_bytes
    described = (
        f"{len(sidecar_survey.kept):,} of {count_text(len(sidecar_survey.sidecars), 'sidecar')} of "
        f"{sidecar_survey.base.files.name} can be taken over, "
        f"{len(sidecar_survey.rewritten):,} must be written again"
    )
    is_cheap = incremental <= _WORTHWHILE * full
    if wanted == "auto" and not is_cheap:
        decision = _in_full(snapshot, f"since {described}")
        return replace(decision, full_bytes=full, incremental_bytes=incremental)
    return Verdict(
        incremental=True,
        reason=f"incremental: {described}",
        full_bytes=full,
        incremental_bytes=incremental,
        survey=sidecar_survey,
    )


def foresee(
    snapshot: Snapshot, spec: CheckpointSpec, wanted: Incremental, *, now: datetime
) -> Verdict:
    """Decides like `decide`, but leaves reading sidecars and commits to the executors of Spark."""
    if wanted == "never":
        return _in_full(snapshot, "as asked for")
    try:
        _require_young(snapshot, now)
        base = require_reusable(snapshot, spec)
    except (NotReusableError, UnusableCheckpointError) as error:
        return _impossible(snapshot, wanted, error)
    return Verdict(
        incremental=True,
        reason=f"incremental, if few sidecars of {base.files.name} are affected by later commits",
        full_bytes=_full_bytes(snapshot),
    )


def _require_young(snapshot: Snapshot, now: datetime) -> None:
    """Raises `NotReusableError` if a clean-up may delete sidecars of the base within a day.

    A clean-up deletes a checkpoint, and sidecars that only this checkpoint names, after the log
    retention of its version has ended. Until then, the sidecars of the base stay, even if this
    process is killed between the publication and the last check of the new checkpoint. The version
    of the new checkpoint must be young, too: no clean-up may rely on a checkpoint that can still be
    withdrawn.
    """
    if snapshot.log.checkpoint is None or not snapshot.log.checkpoint.is_v2:
        return  # a classic checkpoint has no sidecars to take over
    retention = snapshot.properties.log_retention
    least_ms = epoch_millis(now) - (retention - _CLEAN_UP_MARGIN) // timedelta(milliseconds=1)
    base = snapshot.log.segment.base_commit
    times = {
        snapshot.version: snapshot.timestamp_ms,
        snapshot.log.segment.base_version: None if base is None else base.status.modified_ms,
    }
    for version, time_ms in times.items():
        if time_ms is None or time_ms < least_ms:
            raise NotReusableError(
                f"the log retention of version {version}, {duration_text(retention)}, ends within "
                f"{duration_text(_CLEAN_UP_MARGIN)} or has ended"
            )


def _impossible(
    snapshot: Snapshot, wanted: Incremental, error: NotReusableError | UnusableCheckpointError
) -> Verdict:
    is_damaged = isinstance(error, UnusableCheckpointError)
    why = error.problem if isinstance(error, UnusableCheckpointError) else error
    if wanted == "always":
        raise RefusedError(
            f"an incremental checkpoint is not possible: {why}",
            table=snapshot.table,
            version=snapshot.version,
            remedy="run fsck --repair, which writes the damaged checkpoint again"
            if is_damaged
            else "give --incremental never, which writes it in full",
        ) from None
    return _in_full(snapshot, f"since {why}")


def _in_full(snapshot: Snapshot, why: str) -> Verdict:
    return Verdict(incremental=False, reason=f"in full, {why}", full_bytes=_full_bytes(snapshot))


def _full_bytes(snapshot: Snapshot) -> int:
    tail = sum(entry.status.size for entry in snapshot.log.segment.tail)
    base = 0 if snapshot.log.checkpoint is None else snapshot.log.checkpoint.size_bytes
    return base + int(_CHECKPOINT_BYTES_PER_LOG_BYTE * tail)
