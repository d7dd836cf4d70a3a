"""The `expire` operation: removes rows that are older than a limit from the newest version.

Files all of whose rows have expired, as their partition values or bounds prove, are removed without
being read. Files that also have other rows are left, get deletion vectors, or are rewritten. Older
versions keep the rows until a vacuum deletes their files.
"""

from __future__ import annotations

from typing import Literal

from delta_maintenance.errors import (
    CommitUnknownError,
    DeltaMaintenanceError,
    RefusedError,
    locating,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.expire import ExpireOptions, ExpirePlan, ExpireResult
from delta_maintenance.operations.expire.commits import (
    FILES_PER_COMMIT,
    FILES_READ_PER_COMMIT,
    ExpireRun,
    require_expirable,
)
from delta_maintenance.operations.expire.limit import delete_before, limit_of
from delta_maintenance.operations.expire.survey import Survey, survey
from delta_maintenance.operations.holds.find import kept_rows
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.operations.rewriting.planning import doubled_note
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import require_same_clock

_SHOWN_FILES = 100
_OWN_SHARE = 0.5
"""The share of all files, or of their bytes, above which a run requires the flag."""


def plan(
    snapshot: Snapshot, options: ExpireOptions, context: RunContext | None = None
) -> ExpirePlan:
    """Plans what expires. Reads the log once, and no data file.

    Raises `InvalidRequestError` if the column or the limit is invalid, and `RefusedError` or
    `UnsupportedFeatureError` if rows of the table must not be deleted.
    """
    context = context or RunContext()
    options = options.validated()
    reads_mixed = options.mixed != "leave"
    with locating(table=snapshot.table, version=snapshot.version):
        require_expirable(snapshot, options.mixed)
        instant = delete_before(options, context.started)
        limit = limit_of(snapshot, options, instant)
        surveyed = survey(snapshot, limit, reads_mixed=reads_mixed)
    is_noop = not surveyed.whole.files and not (
        reads_mixed and surveyed.mixed.files + surveyed.unknown.files
    )
    notes = (*_left(surveyed, options), *doubled_note(surveyed.doubled), *commit_notes(snapshot))
    if not is_noop:
        notes = (*notes, *kept_rows(snapshot, options.holders, context, rows="expired rows"))
    return ExpirePlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        options=options,
        delete_before=instant,
        predicate=limit.predicate,
        live_files=surveyed.live.files,
        files=surveyed.whole.files,
        bytes=surveyed.whole.bytes,
        rows=surveyed.rows,
        mixed_files=surveyed.mixed.files,
        mixed_bytes=surveyed.mixed.bytes,
        unknown_files=surveyed.unknown.files,
        unknown_bytes=surveyed.unknown.bytes,
        paths_digest=surveyed.paths_digest,
        commits=_commits(surveyed, reads_mixed=reads_mixed),
        large=_large(surveyed),
        reason=_reason(surveyed, limit.predicate, reads_mixed=reads_mixed),
        notes=notes,
    )


def apply(table: Table, plan: ExpirePlan, context: RunContext | None = None) -> ExpireResult:
    """Removes the expired rows of the latest version, by the limit of the plan.

    Errors before the first commit are raised, and so is a commit with an unknown outcome; later
    errors are in the Result. Raises `RefusedError` for a large plan without `allow_large_delete`.
    """
    context = context or RunContext()
    if plan.large is not None and not plan.options.allow_large_delete:
        raise RefusedError(
            plan.large,
            table=plan.table,
            version=plan.version,
            remedy="check the dry run, then give --allow-large-delete",
        )
    if plan.is_noop:
        return ExpireResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            files_left=plan.mixed_files + plan.unknown_files,
            notes=(plan.reason, *plan.notes),
        )
    run: ExpireRun | None = None
    problem: str | None = None
    try:
        snapshot = table.snapshot()
        require_same_clock(
            table.store,
            context.now(),
            new_id=context.new_id,
            planned_at=plan.planned_at,
            listed=snapshot,
        )
        run = ExpireRun(table, snapshot, plan, context)
        run.run()
    except DeltaMaintenanceError as error:
        if run is None or not run.commits or isinstance(error, CommitUnknownError):
            raise error.locate(table=table.uri) from error.__cause__
        problem = str(error.locate(table=table.uri))
    return _result(table, plan, run, problem)


def _result(table: Table, plan: ExpirePlan, run: ExpireRun, problem: str | None) -> ExpireResult:
    skipped = tuple(run.skipped.values())
    if problem is None and skipped:
        problem = skipped[0].problem
    status: Literal["expired", "partly", "nothing-to-do"]
    status = "expired" if run.commits else "nothing-to-do"
    files_left = plan.mixed_files + plan.unknown_files if plan.options.mixed == "leave" else 0
    return ExpireResult(
        table=table.uri,
        version=run.version,
        status="partly" if problem is not None else status,
        num_commits=run.commits,
        files=run.files,
        bytes=run.bytes,
        files_marked=run.marked,
        files_rewritten=run.rewritten,
        rows=run.rows,
        files_left=files_left,
        files_overtaken=run.overtaken,
        skipped=skipped[:_SHOWN_FILES],
        num_skipped=len(skipped),
        problem=problem,
        notes=plan.notes,
    )


def _reason(surveyed: Survey, predicate: str, *, reads_mixed: bool) -> str:
    may = surveyed.mixed.files + surveyed.unknown.files
    if not surveyed.whole.files and not may:
        return f"no file has rows with {predicate}"
    of_live = f"of {count_text(surveyed.live.files, 'file')}"
    whole_text = f"all rows of {surveyed.whole.files:,} {of_live} have {predicate}"
    if surveyed.whole.files == surveyed.live.files:
        return f"{whole_text}: the table is empty afterwards"
    if not may:
        return whole_text
    fate = "is read, because it" if may == 1 else "are read, because they"
    if not reads_mixed:
        fate = "is left, which" if may == 1 else "are left, which"
    return f"{whole_text}; {count_text(may, 'file')} {fate} may have such rows and others"


def _large(surveyed: Survey) -> str | None:
    live, whole = surveyed.live, surveyed.whole
    if whole.files and whole.files == live.files:
        return f"all {count_text(live.files, 'file')} of the table would be removed"
    if whole.files > live.files * _OWN_SHARE or whole.bytes > live.bytes * _OWN_SHARE:
        size = f"{size_text(whole.bytes)} of {size_text(live.bytes)}"
        return f"{whole.files:,} of {live.files:,} files would be removed, with {size}"
    return None


def _left(surveyed: Survey, options: ExpireOptions) -> tuple[str, ...]:
    notes = []
    if surveyed.invalid:
        files = count_text(surveyed.invalid, "file")
        notes.append(
            f"{files} whose value of {options.column} cannot be read, and which therefore never "
            "expire: run fsck, which names them"
        )
    if options.mixed != "leave" or not surveyed.unknown.files:
        return tuple(notes)
    files = count_text(surveyed.unknown.files, "file")
    return (
        *notes,
        f"the log has no usable bounds of {options.column} for {files}; recompute-stats adds them "
        "to files without NaN in a column with statistics, and --mixed reads all of them",
    )


def _commits(surveyed: Survey, *, reads_mixed: bool) -> int:
    mixed = surveyed.mixed.files + surveyed.unknown.files if reads_mixed else 0
    return -(-surveyed.whole.files // FILES_PER_COMMIT) + -(-mixed // FILES_READ_PER_COMMIT)
