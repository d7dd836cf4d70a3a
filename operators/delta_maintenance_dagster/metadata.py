"""Asset metadata for an assessment and for a run: tables, numbers for plots, and a picture."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_maintenance import clock
from delta_maintenance.operations import core
from delta_maintenance.operations.core.documents import markdown_cell, markdown_row

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import CommitPoint, TableHealth
    from delta_maintenance.operations.holds.models import HeldBack
    from delta_maintenance.policies.approval import PendingPlan
    from delta_maintenance.policies.definition.ledger import Prices
    from delta_maintenance.policies.models import Assessment, OperationOutcome, RunResult

Metadata = dict[str, dg.MetadataValue[Any]]

_SHOWN = 10
_TEXT = 300


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
        facts |= of_pending(pending)
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
    results = "plans" if result.status == "planned" else "results"
    facts[results] = _documents(result.outcomes)
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
    money = {} if prices is None else {f"cost_{prices.currency}": "cost"}
    columns = {"began": "string", "operation": "string", "outcome": "string", "by": "string"}
    return {
        "last_operations": _table(
            (
                (
                    clock.minute_text(row["started_at"]),
                    *(row["operation"] or "", row["outcome"], row["done_by"]),
                    *(round(row["seconds"] or 0.0, 1), row["bytes_deleted"] or 0),
                    *(round(row[name], 6) for name in money.values()),
                )
                for row in rows
            ),
            **columns,
            seconds="float",
            bytes_deleted="int",
            **dict.fromkeys(money, "float"),
        )
    }


def of_inbox(pending: Sequence[PendingPlan], job: str) -> Metadata:
    """Returns all waiting plans, those that have waited longest first, and how to approve them."""
    plans = sorted(pending, key=lambda plan: (plan.due_since, plan.name))
    columns = "| plan | operation | table | deletes | held back | waits since | asked by | why |"
    rows = [
        markdown_row(
            (
                f"`{plan.id}`",
                plan.operation,
                _cell(plan.name),
                f"{plan.files:,} files, {core.size_text(plan.bytes)}",
                _cell(", ".join(hold.holder for hold in plan.held if hold.files)),
                clock.minute_text(plan.due_since),
                _cell(plan.asked_by or ""),
                _cell(plan.reason),
            )
        )
        for plan in plans
    ]
    # YAML reads an ID of digits alone as a number.
    ids = ", ".join(f'"{plan.id}"' for plan in plans)
    example = f"ops: {{run_approved_plans: {{config: {{plans: [{ids}]}}}}}}"
    text = "\n".join([columns, "|---" * 8 + "|", *rows])
    instructions = f"To approve, launch `{job}` with the plans to run:\n```yaml\n{example}\n```"
    return {
        "waiting": dg.MetadataValue.md(f"{text}\n\n{instructions}" if plans else "No plan waits."),
        "waiting_plans": dg.MetadataValue.int(len(plans)),
        "waiting_files": dg.MetadataValue.int(sum(plan.files for plan in plans)),
        "waiting_bytes": dg.MetadataValue.int(sum(plan.bytes for plan in plans)),
    }


def _cell(text: str) -> str:
    """Formats untrusted text as a code span in a table of Markdown; a dash stands for none."""
    return markdown_cell(core.replace_flags(text)) or "–"


def of_pending(pending: Sequence[PendingPlan]) -> Metadata:
    """Returns the plans that wait for an approval, and their totals."""
    return {
        "waiting_plans": _table(
            (
                (
                    *(plan.id, plan.operation, plan.files, plan.bytes),
                    f"{plan.share:.0%}" if plan.share is not None else "",
                    *(plan.commits, clock.minute_text(plan.due_since), _short(plan.reason)),
                )
                for plan in pending
            ),
            plan="string",
            operation="string",
            deletes_files="int",
            deletes_bytes="int",
            share_of_files="string",
            commits="int",
            waits_since="string",
            why="string",
        ),
        "waiting_files": dg.MetadataValue.int(sum(plan.files for plan in pending)),
        "waiting_bytes": dg.MetadataValue.int(sum(plan.bytes for plan in pending)),
    }


def of_held(held: Sequence[HeldBack]) -> Metadata:
    """Returns who holds files of a table, and their bytes for plots; a file of several holders is
    counted for each.
    """
    return {
        "held_by": _table(
            (
                (
                    hold.holder,
                    "" if hold.until is None else clock.minute_text(hold.until),
                    *(hold.files, hold.bytes, _short(str(hold))),
                )
                for hold in held
            ),
            holder="string",
            until="string",
            files="int",
            bytes="int",
            why="string",
        ),
        "held_bytes": dg.MetadataValue.int(sum(hold.bytes for hold in held)),
    }


def of_approval(job: str, run_id: str) -> Metadata:
    """Returns the configuration of the job that runs the waiting plans of a run."""
    return {
        "to_approve": dg.MetadataValue.md(
            f"Launch the job `{job}` with this configuration, or with some of the `tables` and "
            "`operations`:\n"
            f"```yaml\nops: {{run_approved_plans: {{config: {{run_id: {run_id}}}}}}}\n```\n"
            "Without configuration, the job lists the plans of all runs, to approve several."
        )
    }


def of_health(health: TableHealth) -> Metadata:
    """Returns numbers of one version, always with the same names, so that Dagster plots them."""
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
        ),
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


def _outcome_table(outcomes: Iterable[OperationOutcome]) -> dg.TableMetadataValue:
    return _table(
        (
            (run.operation, run.status, round(run.seconds, 1), run.engine, _short(run.reason))
            for run in outcomes
        ),
        operation="string",
        status="string",
        seconds="float",
        engine="string",
        why="string",
    )


def _operation_table(assessment: Assessment) -> dg.TableMetadataValue:
    return _table(
        (
            (operation.operation, operation.status, _short(operation.reason))
            for operation in assessment.operations
        ),
        operation="string",
        status="string",
        why="string",
    )


def _table(rows: Iterable[Sequence[Any]], **columns: str) -> dg.TableMetadataValue:
    """Returns a table; `columns` are the types by name, in the order of each row."""
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows],
        schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def _documents(outcomes: Iterable[OperationOutcome]) -> dg.JsonMetadataValue:
    """Returns the JSON of Results or Plans, with long lists shortened."""
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
    return core.replace_flags(value) if isinstance(value, str) else value


def _deleted_amounts(result: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the deleted files and bytes: of the table by a vacuum, of the log by its clean-up."""
    groups = sum(group.get("deleted") or 0 for group in result.get("groups") or ())
    files = result.get("deleted")
    return (files if isinstance(files, int) else groups), (
        result.get("bytes") or 0 if isinstance(files, int) else 0
    )


def _short(text: str) -> str:
    text = core.replace_flags(text)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


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
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11" fill="{_INK}">'
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
