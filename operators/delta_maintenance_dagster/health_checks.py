"""Asset checks on the health of a table, based on the assessment with which maintenance begins."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from delta_maintenance import clock
from delta_maintenance.operations.core import replace_flags
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.registry import known as known_operation
from delta_maintenance_dagster import memory, metadata
from delta_maintenance_dagster.metadata import log_picture
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.step_resources import SharedState
from delta_maintenance_dagster.tables import DeltaTable, with_keys

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import TableHealth
    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.models import Assessment


# Within a folder of definitions, Dagster copies checks in its own code with an argument of its own
# that is in beta, and warns the users of it at every load.
warnings.filterwarnings(
    "ignore",
    message="Parameter `execution_type` of function `AssetsDefinition.__init__`",
    category=dg.BetaWarning,
    module=r"dagster\._core\.definitions\.repository_definition",
)


class HealthThresholds(dg.Model, dg.Resolvable):
    """The thresholds of warnings. The policy of a table takes precedence."""

    max_commits_since_checkpoint: int = Field(
        default=100,
        ge=0,
        description="Commits to be replayed, if the policy has no `checkpoint.max_commits`.",
    )
    max_expired_log_files: int = Field(
        default=1_000, ge=0, description="Files of the log past the log retention."
    )
    max_small_file_share: float = Field(
        default=0.5, ge=0, le=1, description="Share of the live files; applies from 100 files on."
    )
    max_reclaimable_bytes: int = Field(
        default=100 << 30, ge=0, description="Bytes, if the policy has no `vacuum.min_reclaimable`."
    )
    max_deletion_vector_share: float = Field(
        default=0.3, ge=0, le=1, description="Share of the live files; applies from 100 files on."
    )
    min_log_retention_days: float = Field(
        default=7, ge=0, description="Days; a shorter history limits time travel."
    )
    min_deleted_file_retention_days: float = Field(
        default=7,
        ge=0,
        description="Days; a shorter retention deletes files that long-running readers still need.",
    )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One check of one table."""

    name: str
    passed: bool
    message: str
    facts: dict[str, Any] = field(default_factory=dict)
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN

    def evaluation(self, table: DeltaTable) -> dg.AssetCheckEvaluation:
        """The judgement as an event of a maintenance run."""
        return dg.AssetCheckEvaluation(**self._values(table))

    def result(self, table: DeltaTable) -> dg.AssetCheckResult:
        """The judgement as the result of a check."""
        return dg.AssetCheckResult(**self._values(table))

    def _values(self, table: DeltaTable) -> dict[str, Any]:
        return {
            "asset_key": table.key,
            "check_name": self.name,
            "passed": self.passed,
            "metadata": self.facts,
            "severity": self.severity,
            "description": self.message,
        }


_SPECS = {
    "checkpoint_lag": "How many commits readers replay.",
    "log_length": "How many files of the log are past its retention.",
    "small_files": "How many data files are small.",
    "reclaimable_bytes": "How much storage a vacuum would free.",
    "deletion_vector_share": "How many files have a deletion vector.",
    "retention_settings": "Whether versions and removed files are kept for long enough.",
    "protocol": "Whether protocol and properties meet the policy and permit maintenance.",
    "approvals": "Which operations wait for an approval.",
}
_SHOWN = 3
_FEW = 100
"""The number of files below which a share has little meaning."""


def check_specs(table: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    """Returns the checks of a table, on the asset of the table itself."""
    return [
        dg.AssetCheckSpec(name, asset=table, description=description)
        for name, description in _SPECS.items()
    ]


def build_health_checks(
    table: DeltaTable, *, storage: Reference[DeltaStorageResource], thresholds: HealthThresholds
) -> dg.AssetChecksDefinition:
    """The checks of one table as one step: the table is opened once for all of them."""
    return build_health_step(
        [table], name=f"{table.op_name}__health", storage=storage, thresholds=thresholds
    )


def build_health_step(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    storage: Reference[DeltaStorageResource],
    thresholds: HealthThresholds,
    state: SharedState | None = None,
    approval_job: str | None = None,
) -> dg.AssetChecksDefinition:
    """The checks of several tables as one step: each table is opened once for all of its checks.

    The checks of a table that cannot be read fail, and with them the step at its end, unless the
    failure is acknowledged in `state`.
    """
    stores = {table.key: storage.of(table.policy.rules.storage.connection) for table in tables}
    required = set().union(*(store.keys for store in stores.values()))

    @dg.multi_asset_check(
        name=name,
        specs=[spec for table in tables for spec in check_specs(table.stand_in)],
        description="Compares Delta tables with their policies. Reads the log, and no data.",
        can_subset=True,
        required_resource_keys=required | (state.storage.keys if state is not None else set()),
    )
    def health(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.policies.lanes import start_jobs

        def assess(table: DeltaTable) -> "tuple[memory.Memory, Assessment, str | None]":
            remembered = memory.recall(context.instance, table)
            opener = stores[table.key].resolve(context.resources)
            assessment = _assess_table(opener, table, remembered)
            if state is None:
                return remembered, assessment, None
            return remembered, assessment, state.keep(context.resources, context.log, assessment)

        # The run may have selected only some of the checks.
        names_by_table: dict[dg.AssetKey, set[str]] = defaultdict(set)
        for key in context.selected_asset_check_keys:
            names_by_table[key.asset_key].add(key.name)
        selected = [table for table in tables if table.key in names_by_table]
        jobs = start_jobs(assess, selected)
        tables_by_job: dict[Future[Any], DeltaTable] = dict(zip(jobs, selected, strict=True))
        failed: list[Assessment] = []
        for job in as_completed(tables_by_job):
            table = tables_by_job[job]
            remembered, assessment, acknowledgement = job.result()
            if assessment.status == "failed" and acknowledgement is None:
                failed.append(assessment)
            approval = {}
            if approval_job is not None:
                approval = metadata.of_approval(approval_job, context.run, remembered.pending)
            judgements = judge(
                assessment,
                table,
                thresholds,
                pending=remembered.pending,
                approval=approval,
                acknowledged=acknowledgement,
            )
            for judgement in judgements:
                if judgement.name in names_by_table[table.key]:
                    yield judgement.result(table)
        if failed:
            problems = "; ".join(
                replace_flags(failure.problem or failure.uri) for failure in failed[:_SHOWN]
            )
            raise dg.Failure(
                problems if len(failed) == 1 else f"{len(failed)} tables: {problems}",
                allow_retries=all(failure.retryable for failure in failed),
            )

    return with_keys(health, tables)


def _assess_table(
    storage: DeltaStorageResource, table: DeltaTable, remembered: memory.Memory
) -> "Assessment":
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.errors import failure_of
    from delta_maintenance.policies.assess import assess_table, failed_assessment

    now = clock.now()
    try:
        opened = storage.open_table(table.policy)
    except Exception as error:
        failure = failure_of(error, where=table.policy.name)
        return failed_assessment(table.policy, failure, now=now)
    return assess_table(opened, table.policy, now=now, last_runs=remembered.last_runs)


def judge(
    assessment: "Assessment",
    table: DeltaTable,
    thresholds: HealthThresholds,
    *,
    pending: Sequence["PendingPlan"] = (),
    approval: metadata.Metadata,
    acknowledged: str | None = None,
) -> Iterator[Judgement]:
    """Evaluates all checks of an assessed table. All of them fail if the table could not
    be read, with a warning if that is `acknowledged`. `approval` says how to approve what is
    pending.
    """
    health = assessment.health
    failed = assessment.status == "failed"
    if health is None and not failed:
        for name in _SPECS:
            yield Judgement(name=name, passed=True, message="; ".join(assessment.notes))
        return
    if health is None or failed:
        problem = replace_flags(assessment.problem or "the table could not be read")
        error, warning = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
        for name in _SPECS:
            yield Judgement(
                name=name,
                passed=False,
                message=problem if acknowledged is None else f"{acknowledged}: {problem}",
                severity=error if acknowledged is None else warning,
            )
        return
    yield _checkpoint_lag(health, table, thresholds)
    yield _log_length(health, thresholds)
    yield _small_files(health, thresholds)
    yield _reclaimable_bytes(assessment, health, table, thresholds)
    yield _deletion_vectors(health, thresholds)
    yield _retention_settings(health, thresholds)
    yield _protocol(assessment, health)
    yield _approvals(pending, approval)


def _checkpoint_lag(
    health: "TableHealth", table: DeltaTable, thresholds: HealthThresholds
) -> Judgement:
    rule = table.policy.rules.checkpoint
    own_limit = rule.max_commits if rule is not None else None
    limit = thresholds.max_commits_since_checkpoint if own_limit is None else own_limit
    lag = health.commits_since_checkpoint
    return Judgement(
        name="checkpoint_lag",
        passed=lag <= limit,
        message=f"{count_text(lag, 'commit')} since the last checkpoint; up to {limit:,} are fine",
        facts={
            "commits_since_checkpoint": lag,
            "bytes_since_checkpoint": health.bytes_since_checkpoint,
            "checkpoint_version": health.checkpoint_version,
            "checkpoint_kind": health.checkpoint_kind,
        },
    )


def _log_length(health: "TableHealth", thresholds: HealthThresholds) -> Judgement:
    expired = health.expired_log_files
    return Judgement(
        name="log_length",
        passed=expired <= thresholds.max_expired_log_files,
        message=(
            f"{count_text(expired, 'file')} of the log older than {_days(health.log_retention)}; "
            f"up to {thresholds.max_expired_log_files} are fine"
        ),
        facts={
            "expired_log_files": expired,
            "expired_log_bytes": health.expired_log_bytes,
            "log_files": sum(kind.files for kind in health.log_files),
            "log_bytes": health.log_bytes,
            "log": dg.MetadataValue.md(log_picture(health.commits)),
        },
    )


def _small_files(health: "TableHealth", thresholds: HealthThresholds) -> Judgement:
    share = health.small_file_share
    return Judgement(
        name="small_files",
        passed=_share_passes(health, share, thresholds.max_small_file_share),
        message=(
            f"{health.small_files} of {health.num_files} files are smaller than "
            f"{size_text(health.small_file_bytes)}"
        ),
        facts={
            "small_file_share": share,
            "small_files": health.small_files,
            "files": health.num_files,
            "bytes": health.total_bytes,
        },
    )


def _reclaimable_bytes(
    assessment: "Assessment", health: "TableHealth", table: DeltaTable, thresholds: HealthThresholds
) -> Judgement:
    rule = table.policy.rules.vacuum
    own_limit = rule.min_reclaimable if rule is not None else None
    limit = thresholds.max_reclaimable_bytes if own_limit is None else int(own_limit)
    return Judgement(
        name="reclaimable_bytes",
        passed=health.reclaimable_bytes <= limit,
        message=(
            f"a vacuum would free {size_text(health.reclaimable_bytes)} or more; "
            f"up to {size_text(limit)} are fine"
        ),
        facts={
            "reclaimable_bytes": health.reclaimable_bytes,
            "reclaimable_files": health.reclaimable_files,
            "tombstones": health.tombstones,
            **metadata.of_held(assessment.held),
        },
    )


def _deletion_vectors(health: "TableHealth", thresholds: HealthThresholds) -> Judgement:
    share = health.deletion_vector_share
    return Judgement(
        name="deletion_vector_share",
        passed=_share_passes(health, share, thresholds.max_deletion_vector_share),
        message=(
            f"{health.files_with_deletion_vector:,} of {count_text(health.num_files, 'file')} have "
            f"a deletion vector; {_allowed_share(thresholds.max_deletion_vector_share)}"
        ),
        facts={"deletion_vector_share": share, "deleted_rows": health.deleted_rows},
    )


def _allowed_share(limit: float) -> str:
    return f"up to {limit:.0%} are fine, and any share of fewer than {_FEW} files"


def _share_passes(health: "TableHealth", share: float, limit: float) -> bool:
    return health.num_files < _FEW or share <= limit


def _retention_settings(health: "TableHealth", thresholds: HealthThresholds) -> Judgement:
    log = timedelta(days=thresholds.min_log_retention_days)
    files = timedelta(days=thresholds.min_deleted_file_retention_days)
    return Judgement(
        name="retention_settings",
        passed=health.log_retention >= log and health.deleted_file_retention >= files,
        message=(
            f"versions are kept for {_days(health.log_retention)} and removed files for "
            f"{_days(health.deleted_file_retention)}; at least {_days(log)} and {_days(files)} are "
            "fine"
        ),
        facts={
            "log_retention_hours": health.log_retention / timedelta(hours=1),
            "deleted_file_retention_hours": health.deleted_file_retention / timedelta(hours=1),
        },
    )


def _protocol(assessment: "Assessment", health: "TableHealth") -> Judgement:
    # To wait because of a budget is no fault of the table.
    waiting = [item for item in assessment.operations if item.status == "deferred"]
    missing = [
        item
        for item in assessment.operations
        # An operation that only waits for maintenance hours has an instant.
        if (_changes_table(item.operation) and item.status not in ("not-due", "deferred"))
        or (item.status == "blocked" and item.due_at is None)
    ]
    reasons = "; ".join(f"{item.operation}: {item.reason}" for item in (*missing, *waiting))
    return Judgement(
        name="protocol",
        passed=not missing,
        message=reasons or f"as the policy requires: {metadata.protocol_of(health)}",
        facts={
            "protocol": metadata.protocol_of(health),
            "row_tracking": health.row_tracking,
            "refused": dg.MetadataValue.json([item.to_json() for item in health.refused]),
        },
    )


def _approvals(pending: Sequence["PendingPlan"], approval: metadata.Metadata) -> Judgement:
    from delta_maintenance.policies.approval import waiting_texts

    return Judgement(
        name="approvals",
        passed=not pending,
        message="; ".join(waiting_texts(pending)) or "no plan is waiting",
        facts={**metadata.of_inbox(pending), **approval} if pending else {},
    )


def _changes_table(operation: str) -> bool:
    record = known_operation(operation)
    return record is not None and record.effects.changes_table


def _days(length: timedelta) -> str:
    return f"{length / timedelta(days=1):g} days"
