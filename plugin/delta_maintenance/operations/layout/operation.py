"""The `layout` operation: reports whether clustering pays. Reads the log and no data file.

One pass over the statistics of the live files fills columns of bounds; all figures follow from
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from delta_maintenance.errors import InvalidRequestError, locating, shorten
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.layout import (
    ConditionReading,
    KeyProposal,
    LayoutOptions,
    LayoutPlan,
    LayoutReport,
    LayoutResult,
)
from delta_maintenance.operations.layout.measuring import Measured, bytes_read, read_by
from delta_maintenance.operations.layout.proposals import propose
from delta_maintenance.operations.layout.queries import Query, queries_of
from delta_maintenance.operations.layout.reading import Column, columns_of, read_bounds
from delta_maintenance.operations.rewriting.new_files import target_size
from delta_maintenance.protocol.schema import condition as conditions
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.statistics.bounds import Path
from delta_maintenance.protocol.statistics.measures import mean_depth
from delta_maintenance.protocol.statistics.skipping import column_in
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_MOST_COLUMNS = 32
"""The number of columns that are measured unless some are named, as Delta's own default."""
_MOST_QUERIES = 1000
"""The number of different conditions that are measured; the most frequent ones."""
_SHOWN = 5
"""The number of parts of conditions that a note names."""
_MOST_SHOWN = 200
"""The bytes of such a part."""


def plan(
    snapshot: Snapshot, options: LayoutOptions | None = None, context: RunContext | None = None
) -> LayoutPlan:
    """Measures the layout of a table's files. Changes nothing.

    `InvalidRequestError` for an unknown column, a file without queries, and a percentage without
    conditions.
    """
    options, context = (options or LayoutOptions()).validated(), context or RunContext()
    _check(options)
    with locating(table=snapshot.table, version=snapshot.version):
        report = _report(snapshot, options, context)
    return LayoutPlan(planned_at=context.started, options=options, **report)


def apply(table: Table, plan: LayoutPlan, context: RunContext | None = None) -> LayoutResult:
    """Returns the report of a plan as a Result. Reads and changes nothing."""
    return LayoutResult(**{field.name: getattr(plan, field.name) for field in fields(LayoutReport)})


def prepare(
    table: Table, options: LayoutOptions, context: RunContext
) -> Prepared[LayoutPlan, LayoutResult]:
    """Makes the report once for plan and Result."""
    made = plan(context.snapshot_of(table), options, context)
    return Prepared(plan=made, apply=lambda: apply(table, made, context))


def clustered_by(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns the logical names of the clustering columns; empty if not all can be measured."""
    columns = columns_of(snapshot)
    return tuple(columns[path].name for path in _clustering(snapshot, columns)[0])


def depth_by(snapshot: Snapshot, paths: Sequence[Path]) -> float | None:
    """Returns the mean number of files that may contain a combination of values of these columns.

    `paths` are physical names. None if not all columns have bounds, or if there are no files.
    """
    columns = {column.physical: column for column in columns_of(snapshot).values()}
    bounded_columns = [
        columns[path] for path in paths if path in columns and columns[path].is_bounded
    ]
    if len(bounded_columns) < len(paths):
        return None
    files = read_bounds(snapshot, bounded_columns)
    return _depth(Measured(files, target_bytes=1), [column.path for column in bounded_columns])


def _check(options: LayoutOptions) -> None:
    if options.fail_under is not None and not options.where and options.queries is None:
        raise InvalidRequestError(
            "--fail-under needs conditions",
            remedy="name those of your queries with --where or --queries",
        )


def _report(snapshot: Snapshot, options: LayoutOptions, context: RunContext) -> dict[str, Any]:
    known = columns_of(snapshot)
    queries = queries_of(
        options.where,
        options.queries,
        table=snapshot.table,
        storage_options=None
        if options.queries is None
        else context.storage_options(options.queries),
    )
    notes = _notes(queries, known)
    queries = queries[:_MOST_QUERIES]
    old_keys, key_names = _clustering(snapshot, known)
    shown = _shown(known, options.columns)
    used = _used_columns(queries, known)
    chosen = list(dict.fromkeys((*old_keys, *used, *shown)))
    files = read_bounds(snapshot, [known[path] for path in chosen])
    target = options.target_bytes or target_size(snapshot, int(files.size.sum()))
    measured = Measured(files, target)
    columns = {known[path].name: known[path] for path in chosen if known[path].is_bounded}
    layouts = sorted(
        in_parallel(measured.column, columns.values()),
        key=lambda each: each.range.bytes_after - each.range.bytes,
    )
    proposals = propose(measured, layouts, columns, queries, old_keys)
    readings = _readings(measured, queries, known, columns, proposals)
    skipped = _share_skipped(readings)
    below = (
        options.fail_under is not None
        and skipped is not None
        and skipped * 100 < options.fail_under
    )
    best = proposals[0] if proposals else None
    pays = best is not None and best.pays
    return {
        "table": snapshot.table,
        "version": snapshot.version,
        "files": files.count,
        "bytes": int(files.size.sum()),
        "partitions": files.partitions,
        "target_bytes": target,
        "clustering_columns": key_names,
        "clustering_depth": _depth(measured, old_keys),
        "columns": tuple(layouts),
        "conditions": readings,
        "bytes_skipped": skipped,
        "proposals": proposals,
        "status": "below" if below else "pays" if pays else "does-not-pay",
        "reason": _reason(best, queries),
        "notes": notes,
    }


def _notes(queries: Sequence[Query], known: Mapping[Path, Column]) -> tuple[str, ...]:
    if not queries:
        return (
            "each column is judged by filters on it; name the conditions of your queries with "
            "--where or --queries",
        )
    notes = []
    if len(queries) > _MOST_QUERIES:
        more = count_text(len(queries) - _MOST_QUERIES, "rare condition")
        notes.append(f"{more} are not measured")
    opaque = dict.fromkeys(
        part for query in queries[:_MOST_QUERIES] for part in _not_understood(query, known)
    )
    if opaque:
        shown = "; ".join(shorten(part, _MOST_SHOWN) for part in list(opaque)[:_SHOWN])
        more = f"; and {len(opaque) - _SHOWN} more" if len(opaque) > _SHOWN else ""
        notes.append(
            f"not understood, or no column of the table, so skipping nothing here: {shown}{more}"
        )
    return tuple(notes)


def _clustering(
    snapshot: Snapshot, known: Mapping[Path, Column]
) -> tuple[tuple[Path, ...], tuple[str, ...] | None]:
    """Returns the clustering columns that can be measured, and the names of all of them."""
    stored = clustering_columns(snapshot.domain_metadata)
    if stored is None:
        return (), None
    by_physical = {column.physical: column for column in known.values()}
    found = [by_physical[path] for path in stored if path in by_physical]
    names = (by_physical[path].name if path in by_physical else ".".join(path) for path in stored)
    usable = all(column.is_bounded for column in found) and len(found) == len(stored)
    return tuple(column.path for column in found) if usable else (), tuple(names)


def _shown(known: Mapping[Path, Column], names: Sequence[str]) -> list[Path]:
    if not names:
        return [path for path, column in known.items() if column.is_bounded][:_MOST_COLUMNS]
    by_name = {".".join(path): column for path, column in known.items()}
    shown_columns = []
    for name in names:
        column = by_name.get(name.lower())
        if column is None or not column.is_bounded:
            raise InvalidRequestError(
                f"{name} is not a column of data files whose statistics have bounds",
                remedy="name a column of numbers, dates, timestamps or strings",
            )
        shown_columns.append(column.path)
    return shown_columns


def _used_columns(queries: Sequence[Query], known: Mapping[Path, Column]) -> list[Path]:
    used_columns = []
    for query in queries:
        if query.condition is not None:
            named = (column_in(name, known) for name in conditions.columns_of(query.condition))
            used_columns += [path for path in named if path is not None]
    return used_columns


def _depth(measured: Measured, keys: Sequence[Path]) -> float | None:
    if not keys or not measured.files.count:
        return None
    return round(mean_depth([measured.files.columns[key] for key in keys], measured.weights), 3)


def _readings(
    measured: Measured,
    queries: Sequence[Query],
    known: Mapping[Path, Column],
    columns: Mapping[str, Column],
    proposals: Sequence[KeyProposal],
) -> tuple[ConditionReading, ...]:
    if not queries:
        return ()
    files, total = measured.files, int(measured.files.size.sum())
    after: Sequence[float] = [1.0] * len(queries)
    if proposals:
        keys = [columns[name].path for name in proposals[0].new_keys]
        after = bytes_read(queries, measured.cluster_by(keys))
    readings = []
    for query, later in zip(queries, after, strict=True):
        read = read_by(query, files)
        size, count = int(files.size[read].sum()), int(np.count_nonzero(read))
        now = size / total if total else 0.0
        readings.append(
            ConditionReading(
                condition=query.text,
                runs=query.runs,
                files=count,
                bytes=size,
                files_skipped=round(1 - count / files.count, 6) if files.count else 0.0,
                bytes_skipped=round(1 - now, 6) if total else 0.0,
                bytes_skipped_after=round(1 - min(now, later), 6) if total else 0.0,
                not_understood=_not_understood(query, known),
            )
        )
    return tuple(sorted(readings, key=lambda each: -each.bytes * each.runs))


def _not_understood(query: Query, known: Mapping[Path, Column]) -> tuple[str, ...]:
    if query.condition is None:
        return ()
    unknown = (
        ".".join(name)
        for name in conditions.columns_of(query.condition)
        if column_in(name, known) is None
    )
    return tuple(dict.fromkeys((*conditions.opaque_parts(query.condition), *unknown)))


def _share_skipped(readings: Sequence[ConditionReading]) -> float | None:
    if not readings:
        return None
    runs = [reading.runs for reading in readings]
    return round(float(np.average([each.bytes_skipped for each in readings], weights=runs)), 6)


def _reason(best: KeyProposal | None, queries: Sequence[Query]) -> str:
    if best is None and queries:
        return "the conditions compare no column with bounds that files could be clustered by"
    if best is None:
        return "no column has bounds that files could be clustered by"
    keys = ", ".join(best.new_keys)
    if not best.pays:
        return f"clustering by {keys} does not pay: {best.reason.removeprefix('not worth it: ')}"
    return f"clustering by {keys} pays: {best.reason}"
