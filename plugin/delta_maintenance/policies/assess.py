"""The assessment of a table: operations that are due, their order, reasons, cost and benefit.

The log shows the last run of an operation that makes a commit, such as VACUUM END of any engine.
`fsck`, `clean-log`, and a vacuum that found nothing or commits nothing leave no commit; for these,
the caller stores a `LastRun`. Without a record, the operation counts as never run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from delta_maintenance import clock
from delta_maintenance.address import Access
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    failure_of,
)
from delta_maintenance.operations.clean_log.policy import CleanLogRule
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    LastRun,
    block,
)
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.operation import PolicyPart, load
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation, find, policy_operations
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.operations.holds.models import HeldBack, Holders
from delta_maintenance.operations.vacuum.policy import VacuumRule
from delta_maintenance.policies.definition.ledger import TABLE_NAME
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import Rules, complete_rules
from delta_maintenance.policies.models import Assessment, next_due_at, status_of
from delta_maintenance.table.commit.guarded import newest_of_others
from delta_maintenance.table.commit.other_writers import guarded_window, require_declared_writers
from delta_maintenance.table.evidence.overwritten_commits import require_not_overwritten
from delta_maintenance.table.read.file_sums import SumMemory
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table


class NewestSnapshots:
    """Opens the newest version of a table again and again, and reads only what is new.

    It keeps the last snapshot, and in `sums` the sums of its files.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.sums = SumMemory()
        self._last: Snapshot | None = None
        self._reopen = False

    def table_id(self) -> str | None:
        """Returns the ID in the table's metadata when it was last opened; an empty one for a
        damaged table that cannot be opened, which fsck can examine and repair.
        """
        try:
            return self.last_opened().metadata.id
        except CorruptTableError:
            return ""

    def last_opened(self) -> Snapshot:
        """Returns the version that was opened last. Raises the errors of `newest`."""
        return self._last or self.newest()

    @property
    def known_id(self) -> str | None:
        """Like `table_id`; None if the table was not opened yet."""
        return None if self._last is None else self._last.metadata.id

    def newest(self) -> Snapshot:
        """Opens the newest version. Raises the errors of `Table.snapshot`."""
        before = self._last
        if self._reopen:
            before, self._reopen = None, False
        self._last = self.table.snapshot() if before is None else self.table.forward(before)
        return self._last

    def reopen(self) -> None:
        """Lets `newest` open the table like a new reader, which uses log compactions of versions
        that were opened before them.
        """
        self._reopen = True

    def to_plan(self) -> Snapshot:
        """Opens the newest version for a plan: on the checkpoint that a new reader would use.

        `newest` keeps the checkpoint of the last snapshot if another process writes one of an older
        version. An incremental checkpoint must not take over sidecars from it then.
        """
        # One listing, made now, states the checkpoint and the commits. Files that appear after it
        # are treated like files that appear after the plan: transactions read the newer commits,
        # and an incremental checkpoint lists the newer checkpoints before its publication.
        before = self._last
        self._last = (
            self.table.snapshot()
            if before is None
            else self.table.forward(before, newest_checkpoint=True)
        )
        return self._last


def assess_table(
    table: Table,
    policy_table: PolicyTable,
    *,
    now: datetime,
    last_runs: Sequence[LastRun] = (),
    previous: TableHealth | None = None,
    snapshots: NewestSnapshots | None = None,
) -> Assessment:
    """Like `assess`, on the latest version; errors become part of the assessment.

    `snapshots` are those of earlier assessments of this table in the same process.
    """
    snapshots = snapshots or NewestSnapshots(table)
    try:
        table.expect(Access.READ)
        snapshot = snapshots.newest()
        segment = snapshot.log.segment
        require_not_overwritten(table.store, segment.guarded, segment.commits_by_version)
        if policy_table.is_ledger and snapshot.metadata.name != TABLE_NAME:
            return _left_alone(policy_table, "the table is no ledger", now=now)
        return assess(
            snapshot,
            policy_table,
            now=now,
            last_runs=last_runs,
            previous=previous,
            memory=snapshots.sums,
        )
    except Exception as error:
        failure = failure_of(error, where=policy_table.name)
        if policy_table.is_ledger:
            return _left_alone(policy_table, str(failure), now=now)
        return failed_assessment(policy_table, failure, now=now)


def _left_alone(table: PolicyTable, reason: str, *, now: datetime) -> Assessment:
    return Assessment(
        name=table.name, uri=table.uri, assessed_at=now, status="nothing-due", notes=(reason,)
    )


def failed_assessment(
    table: PolicyTable, error: DeltaMaintenanceError, *, now: datetime
) -> Assessment:
    """The assessment of a table that could not be read."""
    return Assessment(
        name=table.name,
        uri=table.uri,
        owner=table.owner,
        tags=table.tags,
        assessed_at=now,
        status="failed",
        problem=str(error.locate(table=table.uri)),
        exit_status=error.exit_status,
        retryable=error.retryable,
    )


def assess(
    snapshot: Snapshot,
    table: PolicyTable,
    *,
    now: datetime,
    last_runs: Sequence[LastRun] = (),
    previous: TableHealth | None = None,
    memory: SumMemory | None = None,
) -> Assessment:
    """Assesses the latest snapshot. Reads the same files as `measure`, and changes nothing.

    `previous` is the health in an earlier assessment, whose commits are not read again; `memory`
    has the sums of files of an earlier one in the same process.
    """
    # Another table may have been at the address.
    last_runs = [run for run in last_runs if run.table_id in (None, snapshot.metadata.id)]
    runs = {run.operation: run for run in last_runs}
    rules, sources, problems = complete_rules(table.rules, snapshot.metadata.configuration)
    vacuumed = runs.get("vacuum")
    clean_log, vacuum = rules.value("clean_log"), rules.value("vacuum")
    health = measure(
        snapshot,
        now=now,
        log_retention=clean_log.retention if isinstance(clean_log, CleanLogRule) else None,
        vacuum_retention=vacuum.retention if isinstance(vacuum, VacuumRule) else None,
        vacuumed_at=vacuumed.at if vacuumed is not None and vacuumed.succeeded else None,
        previous=previous,
        memory=memory,
    )
    if rules.other_writers != "conditional_put":
        health = replace(health, spark_commits=())
    if health.damage is not None:
        return replace(failed_assessment(table, health.damage, now=now), health=health)
    operations = tuple(
        replace(operation, rule_from=name, reason=f"by {name}: {operation.reason}")
        if (name := sources.get(operation.operation)) is not None
        else operation
        for operation in assessed_operations(snapshot, health, rules, now=now, last_runs=runs)
    )
    return Assessment(
        name=table.name,
        uri=table.uri,
        owner=table.owner,
        tags=table.tags,
        assessed_at=now,
        status=status_of(operations),
        operations=operations,
        next_due_at=next_due_at(operations),
        held=_held(health, rules.holders, last_runs, now=now),
        health=health,
        notes=(*health.warnings, *health.unsafe_commits, *problems, *_freeing_nothing(last_runs)),
    )


def _freeing_nothing(last_runs: Sequence[LastRun]) -> Iterator[str]:
    """Warns if the store keeps what operations delete. As the last runs found it, not asked."""
    for run in last_runs:
        freed = run.freed
        if freed is not None and freed.state == "never":
            yield (
                f"deletes free nothing: {run.operation} deleted {size_text(freed.deleted_bytes)}, "
                f"but {freed.why}; add a rule that expires noncurrent versions"
            )


def _held(
    health: TableHealth, holders: Holders, last_runs: Sequence[LastRun], *, now: datetime
) -> tuple[HeldBack, ...]:
    """Returns who holds files of the table, most bytes first.

    Only a plan counts files, so the numbers are those of the last runs. A kept version that has
    ended or was released since, and a reader that the policy no longer names, hold nothing.
    """
    kept_versions = (
        HeldBack.of_version(version) for version in (*holders.keep, *health.kept_versions)
    )
    held_by_holder = {
        holder.holder: holder
        for holder in kept_versions
        if holder.until is None or holder.until > now
    }
    readers = {f"{reader.kind} {reader.name}" for reader in holders.readers}
    for held_back in (held for run in last_runs for held in run.held):
        held_now = held_by_holder.get(held_back.holder)
        if held_now is not None:
            held_by_holder[held_back.holder] = held_now.and_files_of(held_back)
        elif held_back.holder in readers or held_back.first_version is None:
            held_by_holder[held_back.holder] = held_back
    return tuple(sorted(held_by_holder.values(), key=lambda holder: (-holder.bytes, holder.holder)))


def assessed_operations(
    snapshot: Snapshot,
    health: TableHealth,
    rules: Rules,
    *,
    now: datetime,
    last_runs: Mapping[str, LastRun],
) -> Iterator[AssessedOperation]:
    """The requested operations, in the order in which they run."""
    context = EvaluationContext(
        snapshot=snapshot,
        health=health,
        rules=rules,
        now=now,
        last_runs=last_runs,
        is_due=lambda name: _is_due(context, rules, name),
    )
    for record in _order(rules):
        assessed = _assess_operation(context, rules, record)
        if assessed is not None:
            yield assessed


def _order(rules: Rules) -> list[AnyOperation]:
    """The usual order, except for operations that a rule puts before others."""
    order = list(policy_operations())
    for record in tuple(order):
        for name in _before(record.policy, rules):
            at = next(at for at, candidate in enumerate(order) if candidate.name == name)
            if order.index(record) > at:
                order.remove(record)
                order.insert(at, record)
    return order


def _before(policy_part: PolicyPart | None, rules: Rules) -> tuple[str, ...]:
    value = rules.value(policy_part.key) if policy_part is not None else None
    if policy_part is None or policy_part.before is None or value is None:
        return ()
    names: Callable[[object], tuple[str, ...]] = load(policy_part.before)
    return names(value)


def _is_due(context: EvaluationContext, rules: Rules, name: str) -> bool:
    assessed = _assess_operation(context, rules, find(name))
    return assessed is not None and assessed.status == "due"


def _assess_operation(
    context: EvaluationContext, rules: Rules, record: AnyOperation
) -> AssessedOperation | None:
    """One operation with its obstacles; None if the policy does not request it."""
    assert record.policy is not None
    due: Callable[[EvaluationContext], AssessedOperation | None] = load(record.policy.due)
    try:
        assessed = due(context)
    except DeltaMaintenanceError as error:
        # The plan would be refused, and only a change of the table or of its policy helps.
        return block(record.name, _problem_and_remedy(error))
    if assessed is None or assessed.status != "due":
        return assessed
    assessed = replace(assessed, needs_approval=rules.needs_approval(record.name))
    problem = _refusal(context, record, assessed.options)
    if problem is not None:
        return replace(assessed, status="blocked", reason=f"{assessed.reason}, but {problem}")
    quiet, options = guarded_window(context.snapshot.table, rules), assessed.options
    if quiet is not None and options is not None and record.may_commit_on_s3(options):
        segment = context.snapshot.log.segment
        newest = newest_of_others(segment.commits_by_version, segment.guarded)
        until = None if newest is None else clock.instant(newest.status.modified_ms) + quiet
        if until is not None and until > context.now:
            reason = f"{assessed.reason}, but the quiet window lasts until {clock.text(until)}"
            return replace(assessed, status="blocked", reason=reason, due_at=until)
    hours = rules.hours
    if hours is None or hours.is_open(context.now):
        return assessed
    opening = hours.next_opening(context.now)
    return replace(
        assessed,
        status="blocked",
        reason=f"{assessed.reason}, but the maintenance hours begin at {clock.text(opening)}",
        due_at=opening,
    )


def _refusal(
    context: EvaluationContext, record: AnyOperation, options: Record | None
) -> str | None:
    """Returns the reason why the table cannot have the operation, as one clause with its remedy."""
    refused = {refusal.operation: refusal.problem for refusal in context.health.refused}
    problem = next((refused[needed] for needed in record.requires if needed in refused), None)
    problem = problem or record.is_held_by(context.last_runs.values())
    if problem is None and record.requires:
        # Repairs require nothing: they are for such versions.
        try:
            context.snapshot.require_agreement()
        except CorruptTableError as error:
            return _problem_and_remedy(error)
    if problem is None and options is not None and record.may_commit_on_s3(options):
        try:
            require_declared_writers(context.snapshot.table, context.rules)
        except RefusedError as error:
            return _problem_and_remedy(error)
    return problem


def _problem_and_remedy(error: DeltaMaintenanceError) -> str:
    return "; ".join(filter(None, (error.problem, error.remedy)))
