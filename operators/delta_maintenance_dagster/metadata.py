"""Asset metadata for an assessment and for a run: tables, numbers for plots, and a picture."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg

from delta_maintenance import clock
from delta_maintenance.operations import core
from delta_maintenance.operations.core.documents import divide_facts, markdown_cell, markdown_row
from delta_maintenance.operations.core.facts import fact_text, money_text

if TYPE_CHECKING:
    from delta_maintenance.operations.health.contents import TableContents
    from delta_maintenance.operations.health.models import CommitPoint, TableHealth
    from delta_maintenance.operations.holds.models import HeldBack
    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.definition.ledger import Prices
    from delta_maintenance.policies.models import Assessment, OperationOutcome, RunResult

Metadata = dict[str, dg.MetadataValue[Any]]

_SHOWN = 10
_MOST_ROWS = 50
_PLANNED = ("planned", "needs-approval")
"""The statuses of operations whose result is a plan."""
_ONLY_REPOSITORY = "__repository__"
"""The repository of a code location that names none; its links do not contain the name."""
_LONGEST_LINK = 8_000
"""The length of an address that every web server accepts."""


def of_run(result: RunResult, pending: Sequence[PendingPlan] = ()) -> Metadata:
    """Returns values for people after a run.

    `pending` are the plans that wait for an approval: with them, a run that did not fail is
    `blocked`. `due` lists what is due after the run.
    """
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.policies.entries import PastRun, gain_texts

    before = result.before.health if result.before is not None else None
    latest = result.newest_assessment
    after = latest.health if latest is not None else None
    blocked = pending and result.status in ("done", "nothing-due", "blocked")
    facts: Metadata = {"status": dg.MetadataValue.text("blocked" if blocked else result.status)}
    if result.problem is not None:
        facts["problem"] = dg.MetadataValue.text(core.replace_flags(result.problem))
    if brought := gain_texts([PastRun.of(result, None)], now=result.ended_at):
        facts["gained"] = dg.MetadataValue.text("; ".join(brought))
    facts["operations"] = _outcome_table(result.outcomes)
    if pending:
        facts |= of_inbox(pending)
    if latest is not None:
        facts["due"] = _operation_table(latest)
        facts |= of_held(latest.held)
    if before is not None and after is not None:
        facts |= _numbers(
            version_before=before.version,
            version_after=after.version,
            commits_to_replay_before=before.commits_since_checkpoint,
            commits_to_replay_after=after.commits_since_checkpoint,
        )
    deleted = [_deleted_amounts(outcome.result) for outcome in result.outcomes if outcome.result]
    facts |= _numbers(
        files_deleted=sum(files for files, _ in deleted),
        bytes_deleted=sum(size for _, size in deleted),
        commits_made=sum(outcome.commits for outcome in result.outcomes),
        seconds=(result.ended_at - result.started_at).total_seconds(),
    )
    facts |= of_freed(result)
    if after is not None:
        facts |= of_health(after)
    plans = [outcome for outcome in result.outcomes if outcome.status in _PLANNED]
    if plans:
        facts["plans"] = dg.MetadataValue.md("\n\n".join(map(_plan_text, plans)))
    facts["results"] = _documents(item for item in result.outcomes if item not in plans)
    return facts


def of_freed(result: RunResult) -> Metadata:
    """Returns what becomes of the files that a run deleted; nothing if it deleted none."""
    from delta_maintenance.operations.core.freed import freed_bytes, unfreed_texts

    freed = [item.freed for item in result.outcomes if item.freed is not None]
    if not freed:
        return {}
    now = result.ended_at
    facts: Metadata = {"bytes_freed": dg.MetadataValue.int(freed_bytes(freed, now))}
    if unfreed := [*unfreed_texts(freed, now)]:
        facts["not_freed"] = dg.MetadataValue.text("; ".join(unfreed))
    if ends := [item.at for item in freed if item.at is not None]:
        facts["freed_at"] = dg.MetadataValue.timestamp(max(ends))
    return facts


def of_ledger(rows: Sequence[Mapping[str, Any]], prices: Prices | None) -> Metadata:
    """Returns the newest operations on a table, whoever ran them, and their cost."""
    if not rows:
        return {}
    money = {} if prices is None else {"cost": prices.currency}
    return {
        "last_operations": _table(
            ("began", "operation", "outcome", "by", "seconds", "deleted", *money),
            (
                (
                    clock.minute_text(row["started_at"]),
                    *(row["operation"] or "", row["outcome"], row["done_by"]),
                    f"{row['seconds'] or 0:.1f}",
                    core.size_text(row["bytes_deleted"] or 0),
                    *(money_text(row["cost"], currency) for currency in money.values()),
                )
                for row in rows
            ),
        )
    }


def of_inbox(pending: Sequence[PendingPlan]) -> Metadata:
    """Returns waiting plans, those that have waited longest first, and their totals."""
    plans = sorted(pending, key=lambda plan: (plan.due_since, plan.name))
    columns = {
        "operation": [plan.operation for plan in plans],
        "table": [plan.name for plan in plans],
        "deletes": [_deletion_text(plan) for plan in plans],
        "held back by": [
            ", ".join(hold.holder for hold in plan.held if hold.files) for plan in plans
        ],
        "waits since": [clock.minute_text(plan.due_since) for plan in plans],
        "asked by": [plan.asked_by or "" for plan in plans],
        "why": [plan.reason for plan in plans],
        "plan": [plan.id for plan in plans],
    }
    # A page of Dagster is narrow.
    shown = {name: texts for name, texts in columns.items() if any(texts)}
    if len({plan.uri for plan in plans}) == 1:
        del shown["table"]
    waiting = _table([*shown], zip(*shown.values(), strict=True))
    return {
        "waiting": waiting if plans else dg.MetadataValue.md("No plan waits."),
        **_numbers(
            waiting_plans=len(plans),
            waiting_files=sum(plan.files for plan in plans),
            waiting_bytes=sum(plan.bytes for plan in plans),
        ),
    }


def _deletion_text(plan: PendingPlan) -> str:
    share = "" if plan.share is None else f" ({plan.share:.0%} of the examined files)"
    return f"{core.count_text(plan.files, 'file')}, {core.size_text(plan.bytes)}{share}"


def of_held(held: Sequence[HeldBack]) -> Metadata:
    """Returns who holds files of a table, and their bytes for plots; a file of several holders is
    counted for each.
    """
    held_bytes = _numbers(held_bytes=sum(hold.bytes for hold in held))
    if not held:
        return held_bytes
    return {
        "held_by": _table(
            ("holder", "until", "files", "bytes", "why"),
            (
                (
                    hold.holder,
                    "" if hold.until is None else clock.minute_text(hold.until),
                    *(f"{hold.files:,}", core.size_text(hold.bytes), str(hold)),
                )
                for hold in held
            ),
        ),
        **held_bytes,
    }


def of_approval(job: str, run: dg.DagsterRun, pending: Sequence[PendingPlan]) -> Metadata:
    """Returns how to approve waiting plans: a link that opens the launchpad of the job with their
    list, or the list itself. Nothing without plans.
    """
    if not pending:
        return {}
    # YAML reads an ID of digits alone as a number.
    plans = {f'- "{plan.id}"': f"{plan.label}, {_deletion_text(plan)}" for plan in pending}
    begin = "ops:\n  run_approved_plans:\n    config:\n      plans:"
    config = "\n      ".join([begin, *(f"{line}  # {text}" for line, text in plans.items())])
    if (link := _launchpad_link(job, run, config)) is not None:
        text = f"[Open the launchpad with these plans]({link}), and launch those to approve."
    else:
        config = "\n      ".join([begin, *plans])
        text = f"Launch the job `{job}` with the plans to approve:\n```yaml\n{config}\n```"
    return {"to_approve": dg.MetadataValue.md(text)}


def _launchpad_link(job: str, run: dg.DagsterRun, config: str) -> str | None:
    """Returns the address of the launchpad with a configuration; None if the run is of no code
    location, or if the address would be too long.
    """
    if run.remote_job_origin is None:
        return None
    repository = run.remote_job_origin.repository_origin
    path = repository.code_location_origin.location_name
    if repository.repository_name != _ONLY_REPOSITORY:
        path = f"{repository.repository_name}@{path}"
    place = f"/locations/{quote(path, safe='@')}/jobs/{quote(job)}/playground/setup"
    link = f"{place}?config={quote(config)}"
    return link if len(link) <= _LONGEST_LINK else None


def of_health(health: TableHealth) -> Metadata:
    """Returns numbers of one version, always with the same names, so that Dagster plots them."""
    backlog = {
        name: number
        for name in ("unpublished_commits", "unreported_commits")
        if (number := getattr(health, name)) is not None
    }
    if (check := health.file_check) is not None:
        backlog |= {"files_looked_for": check.asked, "files_missing": len(check.findings)}
    return {
        "log": dg.MetadataValue.md(log_picture(health.commits)),
        **_numbers(
            version=health.version,
            files=health.num_files,
            bytes=health.total_bytes,
            log_bytes=health.log_bytes,
            log_files=sum(kind.files for kind in health.log_files),
            small_file_share=float(health.small_file_share),
            reclaimable_bytes=health.reclaimable_bytes,
            deletion_vector_share=float(health.deletion_vector_share),
            **backlog,
        ),
        "protocol": dg.MetadataValue.text(protocol_of(health)),
    }


def of_contents(health: TableHealth, contents: TableContents) -> Metadata:
    """Returns the files, the rows and the columns of a table. Pages of Dagster have places for
    some names, but none for the columns in an observation.
    """
    columns = [
        dg.TableColumn(
            column.name,
            column.type,
            description=column.comment,
            constraints=dg.TableColumnConstraints(nullable=column.is_nullable),
        )
        for column in contents.columns
    ]
    sums = {"files": health.num_files, "dagster/size_bytes": health.total_bytes}
    if contents.rows is not None:
        sums["dagster/row_count"] = contents.rows
    return {
        **_numbers(**sums),
        "columns": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        "protocol": dg.MetadataValue.text(protocol_of(health)),
    }


def _numbers(**numbers: float) -> Metadata:
    """Returns counts and bytes as integers, and shares and seconds as decimals, for plots."""
    return {
        name: dg.MetadataValue.int(number)
        if isinstance(number, int)
        else dg.MetadataValue.float(number)
        for name, number in numbers.items()
    }


def protocol_of(health: TableHealth) -> str:
    """Formats versions and features in one line."""
    versions = f"reader {health.min_reader_version}, writer {health.min_writer_version}"
    return f"{versions}: {', '.join(health.features)}" if health.features else versions


def _outcome_table(outcomes: Sequence[OperationOutcome]) -> dg.MarkdownMetadataValue:
    # The page cuts off a wide table.
    engine = ("engine",) if any(run.engine != "local" for run in outcomes) else ()
    return _table(
        ("operation", "status", *engine, "why"),
        (
            (
                run.operation,
                f"{run.status.replace('-', ' ')}, {run.seconds:.1f} s",
                *(run.engine for _ in engine),
                run.reason,
            )
            for run in outcomes
        ),
    )


def _operation_table(assessment: Assessment) -> dg.MarkdownMetadataValue:
    return _table(
        ("operation", "status", "why"),
        (
            (item.operation, item.state.replace("-", " "), item.reason)
            for item in assessment.operations
        ),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(_markdown_table(columns, rows))


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = ([markdown_cell(core.replace_flags(text)) or "–" for text in row] for row in rows)
    return "\n".join(map(markdown_row, (columns, ["---"] * len(columns), *cells)))


def _plan_text(outcome: OperationOutcome) -> str:
    """Formats a plan: the facts that the command line shows, with grids as tables of their own."""
    head = f"**{outcome.operation}**: {markdown_cell(core.replace_flags(outcome.reason))}"
    if outcome.result is None:
        return head
    record = core.find(outcome.operation)
    fields, grids = divide_facts(record.facts(record.plan.from_json(outcome.result)))
    lines = [[name, line] for name, value in fields.items() for line in core.fact_lines(value)]
    tables = [_first_rows(("fact", "value"), lines)]
    for grid in grids:
        tables.append(_first_rows(grid.columns, [[*map(fact_text, row)] for row in grid.rows]))
    return "\n\n".join([head, *tables])


def _first_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = _markdown_table(columns, rows[:_MOST_ROWS])
    rest = len(rows) - _MOST_ROWS
    return f"{text}\n\nand {rest:,} more" if rest > 0 else text


def _documents(outcomes: Iterable[OperationOutcome]) -> dg.JsonMetadataValue:
    """Returns the JSON of Results or Plans, with long lists and long words shortened."""
    return dg.MetadataValue.json(
        {
            outcome.operation: {
                name: _cut(value)
                for name, value in outcome.result.items()
                if name not in _SAID and value not in (None, "", [], {})
            }
            for outcome in outcomes
            if outcome.result is not None
        }
    )


_SAID = ("table", "path", "engine", "options")
"""Fields that are shown elsewhere, or are too long."""


def _cut(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        ellipsis = [f"… {len(value) - _SHOWN} more"] if len(value) > _SHOWN else []
        return [*(_cut(item) for item in value[:_SHOWN]), *ellipsis]
    return _LONG_WORD.sub(r"\1…\2", core.replace_flags(value)) if isinstance(value, str) else value


_LONG_WORD = re.compile(r"(\S{20})\S{4,}(\S{20})")
"""A path, which would widen the column of all values, so that the page cuts them off."""


def _deleted_amounts(result: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the deleted files and bytes: of the table by a vacuum, of the log by its clean-up."""
    groups = sum(group.get("deleted") or 0 for group in result.get("groups") or ())
    files = result.get("deleted")
    return (files if isinstance(files, int) else groups), (
        result.get("bytes") or 0 if isinstance(files, int) else 0
    )


_WIDTH, _HEIGHT = 640, 150
_LEFT, _TOP, _BOTTOM = 8, 30, 124
_COMMIT, _CHECKPOINT, _COMPACTION = "#8a94a6", "#1f9d6b", "#d9822b"
_INK = "#7a8394"


def log_picture(commits: Sequence[CommitPoint]) -> str:
    """Returns Markdown with the picture, a few kilobytes for any log: three paths and some text."""
    svg = base64.b64encode(log_svg(commits).encode()).decode()
    newest = commits[-1].version if commits else None
    return f"![the log up to version {newest}](data:image/svg+xml;base64,{svg})"


def log_svg(commits: Sequence[CommitPoint]) -> str:
    """Returns the picture. The height of a bar is the logarithm of the commit's bytes."""
    step = (_WIDTH - 2 * _LEFT) / max(len(commits), 1)
    largest = math.log2(max((point.bytes for point in commits), default=0) + 2)

    def bar(index: int, point: CommitPoint) -> str:
        height = (_BOTTOM - _TOP) * math.log2(point.bytes + 2) / largest
        return f"M{_x(index, step)} {_BOTTOM}v-{height:.0f}"

    bars = "".join(bar(index, point) for index, point in enumerate(commits))
    checkpoints = _marks(
        (index for index, point in enumerate(commits) if point.is_checkpoint), step
    )
    compactions = _marks(
        (index for index, point in enumerate(commits) if point.is_compaction), step
    )
    width = max(min(step * 0.7, 14), 0.8)
    ends = (commits[0].version, commits[-1].version) if commits else (0, 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12" fill="{_INK}">'
        f'<path d="{bars}" stroke="{_COMMIT}" stroke-width="{width:.1f}"/>'
        f'<path d="{checkpoints}" fill="{_CHECKPOINT}"/>'
        f'<path d="{compactions}" fill="{_COMPACTION}"/>'
        f"{_legend()}"
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">version {ends[0]}</text>'
        f'<text x="{_WIDTH - _LEFT}" y="{_HEIGHT - 4}" text-anchor="end">version {ends[1]}</text>'
        "</svg>"
    )


def _x(index: int, step: float) -> str:
    return f"{_LEFT + (index + 0.5) * step:.1f}"


def _marks(indexes: Iterable[int], step: float) -> str:
    """Returns triangles below the bars."""
    return "".join(f"M{_x(index, step)} {_BOTTOM + 2}l4 7h-8z" for index in indexes)


def _legend() -> str:
    names = {"commit, by bytes": _COMMIT, "checkpoint": _CHECKPOINT, "log compaction": _COMPACTION}
    return "".join(
        f'<circle cx="{_LEFT + 4 + index * 130}" cy="11" r="4" fill="{color}"/>'
        f'<text x="{_LEFT + 13 + index * 130}" y="15">{name}</text>'
        for index, (name, color) in enumerate(names.items())
    )
