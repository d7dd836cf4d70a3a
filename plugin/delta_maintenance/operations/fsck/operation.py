"""The `fsck` operation: checks the integrity of a table, and repairs what can be repaired safely.

A check never changes the table. Each repair is decided again when it is applied, and made only if
it would still be proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import pyarrow as pa

from delta_maintenance.errors import locating
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.parquet_report import write_rows
from delta_maintenance.operations.fsck import (
    Finding,
    FindingCount,
    FsckOptions,
    FsckPlan,
    FsckResult,
    Repair,
    RepairOutcome,
    status_of,
)
from delta_maintenance.operations.fsck.examination import ContentsCheck, TableExamination, examine
from delta_maintenance.operations.fsck.findings import KINDS, Findings
from delta_maintenance.operations.fsck.proposals import (
    commits_after_wrong_checkpoints,
    proposed_repairs,
)
from delta_maintenance.operations.fsck.repair import Repairing
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.table import Table

_SHOWN = 20
"""The number of findings of each kind in a Plan and a Result."""


@dataclass(frozen=True, slots=True)
class FsckSurvey:
    """A plan, with all findings."""

    plan: FsckPlan
    found: TableExamination

    @property
    def findings(self) -> pa.Table:
        """All findings (`findings.FINDINGS`)."""
        return self.found.findings.table()


def plan(
    table: Table, options: FsckOptions | None = None, context: RunContext | None = None
) -> FsckPlan:
    """Checks a table, and plans the repairs that `apply` would make. Changes nothing.

    Takes the table instead of a snapshot, because a damaged table may not have one.
    `NotADeltaTableError` if there is no log, `UnsupportedFeatureError` if this release cannot read
    the table; every other problem is a finding.
    """
    context = context or RunContext()
    return survey(
        table, options, now=context.started, engine=context.engine, progress=context.progress
    ).plan


def survey(
    table: Table,
    options: FsckOptions | None = None,
    *,
    now: datetime,
    report: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    engine: ContentsCheck | None = None,
    progress: Progress | None = None,
) -> FsckSurvey:
    """Like `plan`, with all findings.

    `report` is the address of a new Parquet file for the findings, in any store and outside the
    table; it is not written if Spark has to open the files first. `engine` opens the files instead
    of threads of this process, if they are to be opened.
    """
    options = (options or FsckOptions()).validated()
    by_others = options.deep and engine is not None
    with locating(table=table.uri):
        examination = examine(
            table,
            now=now,
            deep=options.deep,
            sample=options.sample,
            contents=engine,
            open_fewer_than=None if by_others else _most_files(options),
            progress=progress,
        )
        report = None if examination.unopened else report
        if report is not None:
            rows = examination.findings.table()
            write_rows(rows, report, table=table.store, storage_options=storage_options)
    repairs, notes = proposed_repairs(examination, options, now=now)
    counts = _counts(examination.findings)
    return FsckSurvey(
        FsckPlan(
            table=table.uri,
            version=examination.version,
            planned_at=now,
            options=options,
            engine="spark" if examination.unopened or by_others else "local",
            findings=examination.findings.first(_SHOWN),
            counts=counts,
            report=report,
            repairs=repairs,
            reason=_reason(counts, repairs),
            checked=_describe_checks(examination, options),
            notes=(*_notes(examination), *notes),
        ),
        examination,
    )


def apply(
    table: Table,
    plan: FsckPlan,
    context: RunContext | None = None,
    *,
    surveyed: FsckSurvey | None = None,
) -> FsckResult:
    """Applies the repairs of a plan, then checks the table again. Concurrent runs do no harm.

    `engine` is as in `survey`; `InvalidRequestError` if the plan needs an engine and none is given.
    A repair that fails is reported in the Result, and the other repairs are made nevertheless.
    `surveyed` is the survey of the plan if it has just been made, which saves checking first.
    """
    context = context or RunContext()
    context.require_engine(plan)
    if plan.is_noop:
        return _result(plan, plan.findings, plan.counts, report=plan.report)
    started = context.now()
    with locating(table=table.uri):
        # The engine of the plan is kept, however many files there are now.
        options = replace(plan.options, engine=plan.engine)
        examine = partial(
            survey, table, options, now=started, engine=context.engine, progress=context.progress
        )
        surveyed = surveyed or examine()
        repair_keys = {_key(repair) for repair in plan.repairs}
        repairing = Repairing(
            table=table, found=surveyed.found, options=options, now=started, new_id=context.new_id
        )
        outcomes = tuple(
            repairing.run(repair) for repair in surveyed.plan.repairs if _key(repair) in repair_keys
        )
        after = examine().plan
        done = [outcome for outcome in outcomes if outcome.status == "done"]
        notes = (*after.notes, *commits_after_wrong_checkpoints(surveyed.found, done))
        after = replace(after, notes=notes)
    return _result(after, after.findings, after.counts, repairs=outcomes, report=plan.report)


def prepare(
    table: Table, options: FsckOptions, context: RunContext
) -> Prepared[FsckPlan, FsckResult]:
    """Checks the table, and writes the report that the context requests."""
    if options.engine != "spark":
        context = context.without_engine()
    report = context.report
    surveyed = survey(
        table,
        options,
        now=context.started,
        report=report,
        storage_options=None if report is None else context.storage_options(report),
        engine=context.engine,
        progress=context.progress,
    )
    execute = partial(apply, table, surveyed.plan, context, surveyed=surveyed)
    return Prepared(plan=surveyed.plan, apply=execute)


def _most_files(options: FsckOptions) -> int | None:
    """Returns the number of files from which on this process does not open them; None if
    unlimited.
    """
    return {"auto": options.auto_spark_files, "spark": 0, "local": None}[options.engine]


def _key(repair: Repair) -> tuple[str, str | None]:
    return repair.action, repair.path


def _result(
    plan: FsckPlan,
    findings: tuple[Finding, ...],
    counts: tuple[FindingCount, ...],
    *,
    repairs: tuple[RepairOutcome, ...] = (),
    report: str | None,
) -> FsckResult:
    return FsckResult(
        table=plan.table,
        version=plan.version,
        status=status_of(counts),
        findings=findings,
        counts=counts,
        report=report,
        repairs=repairs,
        checked=plan.checked,
        notes=plan.notes,
    )


def _counts(findings: Findings) -> tuple[FindingCount, ...]:
    return tuple(
        FindingCount(kind=kind, severity=KINDS[kind].severity, count=count)
        for kind, count in sorted(findings.counts.items())
    )


def _reason(counts: Sequence[FindingCount], repairs: Sequence[Repair]) -> str:
    counted_kinds = ", ".join(f"{count.count} {count.kind} ({count.severity})" for count in counts)
    if not counted_kinds:
        return "no problem was found"
    if not repairs:
        return f"{counted_kinds}; no repair is planned"
    return f"{counted_kinds}; planned repairs: {', '.join(repair.action for repair in repairs)}"


def _describe_checks(examination: TableExamination, options: FsckOptions) -> tuple[str, ...]:
    numbers = Counter(entry.file.kind for entry in examination.inventory.entries)
    kinds = {
        LogFileKind.COMMIT: "commit",
        LogFileKind.SIDECAR: "sidecar",
        LogFileKind.COMPACTION: "log compaction",
        LogFileKind.CHECKSUM: "checksum",
    }
    listed = [count_text(numbers[kind], noun) for kind, noun in kinds.items() if numbers[kind]]
    listed.insert(1, count_text(len(examination.inventory.listing.checkpoints), "checkpoint"))
    told = [f"the log: {', '.join(listed)}"]
    if examination.presence is None:
        return (*told, "no data file, because the newest version cannot be read")
    files = count_text(
        examination.presence.present.num_rows + examination.presence.missing.num_rows, "live file"
    )
    how = "in a listing, and not opened; --deep opens them"
    if options.deep and not examination.unopened:
        some = f"{examination.presence.opened:,} of them " if options.sample is not None else ""
        how = f"in a listing, and {some}opened"
    return (*told, f"{files}: {how}")


def _notes(examination: TableExamination) -> tuple[str, ...]:
    notes = []
    if examination.unopened:
        notes.append(
            f"{examination.unopened} data files and deletion vectors are to be opened by a "
            "Spark job"
        )
    if examination.presence is not None and examination.presence.external:
        notes.append(
            f"{examination.presence.external} data files are outside the table's root and were not "
            "checked"
        )
    if examination.uncompared:
        notes.append(
            f"the row IDs in {examination.uncompared} data files were not compared with "
            "those of others"
        )
    history = examination.history
    if history is not None and history.base is not None:
        notes.append(
            f"the log begins with the checkpoint of version {history.first}, so that checkpoint "
            "could not be compared with commits"
        )
    return tuple(notes)
