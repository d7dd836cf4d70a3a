"""When each operation is due: one function for each, over the health of a table and its rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import (
    checkpoint,
    compact_log,
    set_properties,
    upgrade_protocol,
    vacuum,
)
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsOptions
from delta_maintenance.operations.clean_log import LEAST_RETENTION as LEAST_LOG_RETENTION
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.fsck.options import FsckOptions
from delta_maintenance.operations.health import TableHealth, last_vacuum
from delta_maintenance.operations.vacuum.planning import LEAST_RETENTION
from delta_maintenance.operations.vacuum.removed_in_log import last_vacuumed
from delta_maintenance.policies.definition.rules import OPERATIONS, OperationName, Rules
from delta_maintenance.policies.evaluation import Look, blocked, count, given, not_due, since, text
from delta_maintenance.policies.models import AssessedOperation
from delta_maintenance.protocol.row_tracking.domain import ENABLED_PROPERTY

_LISTED_AT_ONCE = 1000
"""Files that one request lists."""


def assessed_operations(look: Look) -> Iterator[AssessedOperation]:
    """Those that the policy asks for, in the order in which they run."""
    for name in _order(look.rules):
        assessed = _assessed(look, name)
        if assessed is not None:
            yield assessed


def _order(rules: Rules) -> tuple[OperationName, ...]:
    if rules.vacuum is None or rules.vacuum.mode == "full":
        return OPERATIONS
    # It goes by the commits that a clean-up would take away.
    others = tuple(name for name in OPERATIONS if name not in ("vacuum", "clean-log"))
    return (*others, "vacuum", "clean-log")


def _assessed(look: Look, name: OperationName) -> AssessedOperation | None:
    """One of them, held against what stands in its way; None where nobody asks for it."""
    try:
        assessed = _ASSESSED[name](look)
    except DeltaMaintenanceError as error:
        # The plan refuses: nothing but a change of the table or of its policy helps.
        return blocked(name, "; ".join(filter(None, (error.problem, error.remedy))))
    if assessed is None or assessed.status != "due":
        return assessed
    assessed = replace(assessed, needs_approval=name in look.rules.approval)
    problem = look.refusal(name)
    if problem is not None:
        return replace(assessed, status="blocked", reason=f"{assessed.reason}, but {problem}")
    hours = look.rules.hours
    if hours is None or hours.is_open(look.now):
        return assessed
    opening = hours.next_opening(look.now)
    return replace(
        assessed,
        status="blocked",
        reason=f"{assessed.reason}, but the maintenance hours begin at {text(opening)}",
        due_at=opening,
    )


def _upgrade_protocol(look: Look) -> AssessedOperation | None:
    rule = look.rules.protocol
    if rule is None or not rule.features:
        return None
    options = upgrade_protocol.UpgradeProtocolOptions(
        features=rule.features, other_writers=look.rules.other_writers
    )
    plan = upgrade_protocol.plan(look.snapshot, options, now=look.now)
    return _change("upgrade-protocol", plan.is_noop, plan.reason, options)


def _set_properties(look: Look) -> AssessedOperation | None:
    properties = dict(look.rules.protocol.properties) if look.rules.protocol is not None else {}
    if look.rules.row_tracking is False and look.health.row_tracking == "enabled":
        properties[ENABLED_PROPERTY] = "false"
    if not properties:
        return None
    options = set_properties.SetPropertiesOptions(
        properties=properties, other_writers=look.rules.other_writers
    )
    plan = set_properties.plan(look.snapshot, options, now=look.now)
    return _change("set-properties", plan.is_noop, plan.reason, options)


def _backfill_row_ids(look: Look) -> AssessedOperation | None:
    if not look.rules.row_tracking:
        return None
    health, engine = look.health, look.rules.engine
    if health.row_tracking == "enabled":
        return not_due("backfill-row-ids", "row tracking is enabled")
    if health.row_tracking in ("suspended", "contradictory"):
        return blocked(
            "backfill-row-ids",
            f"row tracking is {health.row_tracking}; run backfill-row-ids by hand, and lift that",
        )
    options = BackfillRowIdsOptions.from_json(
        given(
            engine=engine.prefer,
            auto_spark_files=engine.spark_files,
            other_writers=look.rules.other_writers,
        )
    )
    commits = math.ceil(health.num_files / options.files_per_commit) + 2
    return AssessedOperation(
        operation="backfill-row-ids",
        status="due",
        reason=f"row tracking is {health.row_tracking}, and the policy asks for it",
        engine="spark" if engine.prefer == "spark" else "local",
        options=options.to_json(),
        bytes_to_read=health.bytes_to_open,
        requests=health.files_to_open + 3 * commits,
    )


def _fsck(look: Look) -> AssessedOperation | None:
    rule = look.rules.fsck
    if rule is None:
        return None
    last = look.last_run("fsck")
    reason, due_at = since("fsck", last.at if last is not None else None, rule.every, look.now)
    if due_at is not None:
        return not_due("fsck", reason, due_at)
    engine = look.rules.engine
    options = FsckOptions.from_json(
        given(deep=rule.deep, engine=engine.prefer, auto_spark_files=engine.spark_files)
    )
    health = look.health
    many = engine.prefer == "spark" or (
        engine.prefer == "auto" and health.num_files >= options.auto_spark_files
    )
    opened = health.num_files + health.files_with_deletion_vector if rule.deep else 0
    return AssessedOperation(
        operation="fsck",
        status="due",
        reason=reason,
        engine="spark" if rule.deep and many else "local",
        options=options.to_json(),
        bytes_to_read=health.log_bytes,
        requests=sum(kind.files for kind in health.log_files) + _listings(health) + opened,
    )


def _checkpoint(look: Look) -> AssessedOperation | None:
    rule, health = look.rules.checkpoint, look.health
    if rule is None:
        return None
    commits, size = health.commits_since_checkpoint, health.bytes_since_checkpoint
    oldest = health.oldest_commit_since_checkpoint
    due_at = oldest + rule.max_age if oldest is not None and rule.max_age is not None else None
    since = (
        "since the table's first version"
        if health.checkpoint_version is None
        else f"since the checkpoint of version {health.checkpoint_version}"
    )
    if commits and rule.max_commits is not None and commits >= rule.max_commits:
        reason = f"{count(commits, 'commit')} {since}, of {rule.max_commits} allowed"
    elif commits and rule.max_bytes is not None and size >= rule.max_bytes:
        reason = f"{size} bytes of commits {since}, of {int(rule.max_bytes)} allowed"
    elif due_at is not None and look.now >= due_at:
        reason = f"the oldest commit {since} is older than {rule.max_age}"
    else:
        return not_due("checkpoint", f"{count(commits, 'commit')} {since}", due_at)
    options = checkpoint.CheckpointOptions.from_json(
        given(
            kind=rule.kind,
            actions_per_sidecar=rule.actions_per_sidecar,
            time_zone=rule.time_zone,
            engine=look.rules.engine.prefer,
            auto_spark_bytes=look.rules.engine.spark_log_bytes,
        )
    )
    plan = checkpoint.plan(look.snapshot, options, now=look.now)
    if plan.is_noop:
        return not_due("checkpoint", plan.reason)
    actions = health.num_files + health.tombstones
    sidecars = 0
    if plan.kind != "classic" and options.actions_per_sidecar:
        sidecars = math.ceil(actions / options.actions_per_sidecar)
    return AssessedOperation(
        operation="checkpoint",
        status="due",
        reason=reason,
        engine=plan.engine,
        options=options.to_json(),
        commits_to_replay=len(look.snapshot.segment.tail),
        commits_to_replay_after=0,
        bytes_to_read=plan.log_bytes,
        requests=health.files_to_open + sidecars + 3,
    )


def _compact_log(look: Look) -> AssessedOperation | None:
    rule = look.rules.compact_log
    if rule is None:
        return None
    if _is_due(look, "checkpoint"):
        return not_due("compact-log", "the checkpoint that is due leaves nothing to compact")
    options = compact_log.CompactLogOptions.from_json(
        given(
            commits_per_file=rule.commits_per_file,
            engine=look.rules.engine.prefer,
            auto_spark_bytes=look.rules.engine.spark_log_bytes,
        )
    )
    plan = compact_log.plan(look.snapshot, options, now=look.now)
    last = look.last_run("compact-log")
    # Windows in which nothing stands, or whose commits contradict each other, stay as they are.
    tried = -1 if last is None else last.version
    windows = [window for window in plan.windows if window.last_version > tried]
    if not windows:
        return not_due("compact-log", plan.reason if plan.is_noop else "nothing new to compact")
    commits = sum(window.last_version - window.first_version + 1 for window in windows)
    replayed = len(look.snapshot.segment.tail)
    return AssessedOperation(
        operation="compact-log",
        status="due",
        reason=plan.reason,
        engine=plan.engine,
        options=options.to_json(),
        commits_to_replay=replayed,
        commits_to_replay_after=replayed - commits + len(windows),
        bytes_to_read=plan.log_bytes,
        requests=commits + len(windows) + 2,
    )


def _clean_log(look: Look) -> AssessedOperation | None:
    rule, health = look.rules.clean_log, look.health
    if rule is None:
        return None
    least = max(health.log_retention, LEAST_LOG_RETENTION)
    if rule.retention is not None and rule.retention < least:
        return blocked(
            "clean-log",
            f"the policy's log retention of {rule.retention} is shorter than {least}; set the "
            "table's delta.logRetentionDuration, or take a longer one",
        )
    if not health.expired_log_files:
        return not_due("clean-log", "the log retention asks for all that is there")
    last = look.last_run("clean-log")
    _, due_at = since("clean-log", last.at if last is not None else None, rule.every, look.now)
    found = f"{count(health.expired_log_files, 'file')} of the log behind the retention"
    if due_at is not None:
        return not_due(
            "clean-log", f"{found}, and the last one was less than {rule.every} ago", due_at
        )
    return AssessedOperation(
        operation="clean-log",
        status="due",
        reason=found,
        options=CleanLogOptions(log_retention=rule.retention).to_json(),
        bytes_to_read=health.checkpoint_bytes,
        requests=math.ceil(health.expired_log_files / _LISTED_AT_ONCE) + 6,
        reclaims_files=health.expired_log_files,
        reclaims_bytes=health.expired_log_bytes,
    )


def _vacuum(look: Look) -> AssessedOperation | None:
    rule, health = look.rules.vacuum, look.health
    if rule is None:
        return None
    least = max(health.deleted_file_retention, LEAST_RETENTION)
    if rule.retention is not None and rule.retention < least:
        return blocked(
            "vacuum",
            f"the policy's retention of {rule.retention} is shorter than {least}; take a longer "
            "one, or vacuum by hand",
        )
    remembered = look.last_run("vacuum")
    times = (last_vacuum(health.maintenance), remembered.at if remembered is not None else None)
    last = max((time for time in times if time is not None), default=None)
    reason, due_at = since("vacuum", last, rule.every, look.now)
    enough = rule.min_reclaimable
    if due_at is not None and enough is not None and health.reclaimable_bytes >= max(1, enough):
        reason = f"{health.reclaimable_bytes} bytes wait to be reclaimed, of {int(enough)} allowed"
    elif due_at is not None:
        return not_due("vacuum", reason, due_at)
    mode = rule.mode
    if mode == "lite" and not _goes_back_far_enough(look):
        mode = "full"
        reason += ", in full, for the log no longer tells of everything that was removed"
    share = look.rules.limits.max_deleted_share
    options = vacuum.VacuumOptions.from_json(
        given(
            mode=mode,
            retention=rule.retention,
            log_commits=rule.log_commits,
            other_writers=look.rules.other_writers,
            allow_large_delete=share is None or share > 0.5,
            engine=look.rules.engine.prefer,
            auto_spark_bytes=look.rules.engine.spark_log_bytes,
        )
    )
    return AssessedOperation(
        operation="vacuum",
        status="due",
        reason=reason,
        engine=vacuum.engine_for(look.snapshot, options),
        options=options.to_json(),
        bytes_to_read=health.bytes_to_open,
        requests=_listings(health)
        + health.files_to_open
        + math.ceil(health.reclaimable_files / _LISTED_AT_ONCE),
        reclaims_files=health.reclaimable_files,
        reclaims_bytes=health.reclaimable_bytes,
    )


def _is_due(look: Look, name: OperationName) -> bool:
    assessed = _assessed(look, name)
    return assessed is not None and assessed.status == "due"


def _change(name: OperationName, is_noop: bool, reason: str, options: Record) -> AssessedOperation:
    if is_noop:
        return not_due(name, reason)
    return AssessedOperation(
        operation=name, status="due", reason=reason, options=options.to_json(), requests=3
    )


def _listings(health: TableHealth) -> int:
    return math.ceil((health.num_files + health.tombstones) / _LISTED_AT_ONCE) + 1


def _goes_back_far_enough(look: Look) -> bool:
    """Whether all commits are there that no vacuum by the log went through."""
    oldest = look.health.oldest_version
    if not oldest:
        return oldest == 0
    done = last_vacuumed(look.snapshot.store)
    return done is not None and done >= oldest - 1


_ASSESSED: Mapping[OperationName, Callable[[Look], AssessedOperation | None]] = {
    "upgrade-protocol": _upgrade_protocol,
    "set-properties": _set_properties,
    "backfill-row-ids": _backfill_row_ids,
    "fsck": _fsck,
    "checkpoint": _checkpoint,
    "compact-log": _compact_log,
    "clean-log": _clean_log,
    "vacuum": _vacuum,
}
