"""Asset metadata for an assessment and for a run: tables, numbers for plots, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_maintenance_dagster import memory
from delta_maintenance_dagster.health.log_picture import log_picture

if TYPE_CHECKING:
    from delta_maintenance.operations.health.models import TableHealth
    from delta_maintenance.policies.models import Assessment, OperationOutcome, RunResult

Metadata = dict[str, dg.MetadataValue[Any]]

_SHOWN = 10
_TEXT = 300


def of_run(result: RunResult) -> Metadata:
    """Values for a person after a run, and values for the next run."""
    before = result.before.health if result.before is not None else None
    latest = result.after or result.before
    after = latest.health if latest is not None else None
    facts: Metadata = {"status": dg.MetadataValue.text(result.status)}
    if result.problem is not None:
        facts["problem"] = dg.MetadataValue.text(result.problem)
    facts["operations"] = _outcomes(result.outcomes)
    if result.before is not None:
        facts["due"] = _assessed(result.before)
    if before is not None and after is not None:
        facts |= {
            "version_before": dg.MetadataValue.int(before.version),
            "version_after": dg.MetadataValue.int(after.version),
            "commits_to_replay_before": dg.MetadataValue.int(before.commits_since_checkpoint),
            "commits_to_replay_after": dg.MetadataValue.int(after.commits_since_checkpoint),
        }
    deleted = [_deleted(outcome.result) for outcome in result.outcomes if outcome.result]
    facts |= {
        "files_deleted": dg.MetadataValue.int(sum(files for files, _ in deleted)),
        "bytes_deleted": dg.MetadataValue.int(sum(size for _, size in deleted)),
        "commits_made": dg.MetadataValue.int(sum(each.commits for each in result.outcomes)),
        "seconds": dg.MetadataValue.float((result.ended_at - result.started_at).total_seconds()),
    }
    if after is not None:
        facts |= of_health(after)
    results = "plans" if result.status == "planned" else "results"
    facts[results] = _documents(result.outcomes)
    return {**facts, memory.METADATA_KEY: memory.to_metadata(result.last_runs)}


def of_health(health: TableHealth) -> Metadata:
    """Numbers of one version, with the same names everywhere, so that Dagster plots them."""
    return {
        "log": dg.MetadataValue.md(log_picture(health.commits)),
        "version": dg.MetadataValue.int(health.version),
        "files": dg.MetadataValue.int(health.num_files),
        "bytes": dg.MetadataValue.int(health.total_bytes),
        "log_bytes": dg.MetadataValue.int(health.log_bytes),
        "log_files": dg.MetadataValue.int(sum(kind.files for kind in health.log_files)),
        "small_file_share": dg.MetadataValue.float(health.small_file_share),
        "reclaimable_bytes": dg.MetadataValue.int(health.reclaimable_bytes),
        "deletion_vector_share": dg.MetadataValue.float(health.deletion_vector_share),
        "protocol": dg.MetadataValue.text(protocol_of(health)),
    }


def protocol_of(health: TableHealth) -> str:
    """Versions and features in one line."""
    versions = f"reader {health.min_reader_version}, writer {health.min_writer_version}"
    return f"{versions}: {', '.join(health.features)}" if health.features else versions


def _outcomes(outcomes: Iterable[OperationOutcome]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord(
                {
                    "operation": each.operation,
                    "status": each.status,
                    "seconds": round(each.seconds, 1),
                    "engine": each.engine,
                    "why": _short(each.reason),
                }
            )
            for each in outcomes
        ],
        schema=_schema(
            operation="string", status="string", seconds="float", engine="string", why="string"
        ),
    )


def _assessed(assessment: Assessment) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord(
                {
                    "operation": each.operation,
                    "status": each.status,
                    "why": _short(each.reason),
                }
            )
            for each in assessment.operations
        ],
        schema=_schema(operation="string", status="string", why="string"),
    )


def _schema(**columns: str) -> dg.TableSchema:
    return dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])


def _documents(outcomes: Iterable[OperationOutcome]) -> dg.JsonMetadataValue:
    """The JSON of Results or Plans, with long lists shortened."""
    return dg.MetadataValue.json(
        {
            each.operation: {
                name: _cut(value)
                for name, value in each.result.items()
                if name not in _SAID and value not in (None, "", [], {})
            }
            for each in outcomes
            if each.result is not None
        }
    )


_SAID = ("table", "path", "engine", "options")
"""Fields that are shown elsewhere, or are too long."""


def _cut(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        more = [f"… {len(value) - _SHOWN} more"] if len(value) > _SHOWN else []
        return [*(_cut(item) for item in value[:_SHOWN]), *more]
    return value


def _deleted(result: Mapping[str, Any]) -> tuple[int, int]:
    """Files and bytes that are gone: of the table by a vacuum, of the log by its clean-up."""
    groups = sum(group.get("deleted") or 0 for group in result.get("groups") or ())
    files = result.get("deleted")
    return (files if isinstance(files, int) else groups), (
        result.get("bytes") or 0 if isinstance(files, int) else 0
    )


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
