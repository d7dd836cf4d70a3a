"""The survey of a table: the bins that a run will rewrite. All rewriting operations use it.

It reads the log, and footers of data files if a reason needs them.
If small files of a partition fill several bins and no earlier rewrite shows how large new files
become, a sample of their rows is read as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import numpy as np

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.operations.rewriting.choice import (
    SMALL,
    Choice,
    ChoiceRules,
    choose,
    known_ratio,
    limited,
    limited_ratio,
    not_too_often,
)
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.engine import default_workers, memory_bound
from delta_maintenance.operations.rewriting.live_columns import (
    DROPPED_COLUMNS,
    FooterReasons,
    LiveColumns,
    Mask,
    live_columns,
)
from delta_maintenance.operations.rewriting.models import PartitionPlan, ReasonCount, RewriteOptions
from delta_maintenance.operations.rewriting.new_files import contract_for
from delta_maintenance.operations.rewriting.run import COMMIT_BYTES, MOST_COMMITS
from delta_maintenance.protocol.data_files.other_columns import may_have_dropped_columns
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.protocol.schema.evaluation import partition_filter
from delta_maintenance.protocol.schema.types import parse_schema
from delta_maintenance.protocol.statistics.columns import stats_columns_problem
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.data.rewrite import size_ratio
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_writable

AMPLIFICATION = 3
"""Bytes of earlier rewrites that may be rewritten again in a week, per appended byte."""
_WEEK = timedelta(days=7)
_SAMPLED_FILES = 8
"""The number of files of which some rows are read to learn the size of new files."""
_SHOWN_PARTITIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The bins of a run, and the live files from which they were chosen."""

    snapshot: Snapshot
    files: LiveColumns
    choice: Choice
    contract: Contract
    engine: Literal["local", "spark"] = "local"
    why: str = ""
    """The reason for the engine, as a clause."""
    workers: int | None
    """The number of bins that are rewritten at the same time; None if the Spark cluster decides."""
    notes: tuple[str, ...] = ()


def survey(
    snapshot: Snapshot,
    options: RewriteOptions,
    rules: Callable[[int], ChoiceRules],
    *,
    now: datetime,
    footer_reasons: Sequence[str] = (),
) -> Survey:
    """Chooses the bins. `rules` returns the rules for a given size of new files in bytes.

    `footer_reasons` are reasons of `FooterReasons`; if there are any, footers are read.

    Raises `UnsupportedFeatureError` or `RefusedError` if this release must not rewrite the table,
    and `InvalidRequestError` for an invalid condition.
    """
    require_writable(snapshot, Operation.REWRITE_DATA)
    files = live_columns(snapshot)
    contract = contract_for(snapshot, options, int(files.size.sum()))
    asked = asked_partitions(snapshot, files, options.where)
    written_lately = written_lately_in(files, options.quiet_for, now)
    taken = np.zeros(files.count, np.bool_)
    if options.as_of is not None:
        taken |= files.modified > epoch_millis(options.as_of)
    archived = archived_in(snapshot, files, now)
    reasons = FooterReasons(
        store=snapshot.log.store,
        layout=contract.spec.files.layout,
        codec=contract.spec.files.codec,
        wanted=_possible(snapshot, contract, footer_reasons),
    )(files, asked[files.partition] & ~(taken | archived | files.doubled))
    chosen = partial(
        choose,
        files,
        rules(contract.spec.target_bytes),
        partitions=asked,
        written_lately=written_lately,
        taken=taken,
        archived=archived,
        footers=reasons,
    )
    ratio = known_ratio(files)
    choice = chosen(ratio=1.0 if ratio is None else ratio)
    if ratio is None and choice.has_neighbours(files):
        choice = chosen(ratio=_sampled_ratio(snapshot, files, choice, contract))
    choice = not_too_often(files, choice, budget=_budget(files, choice, now))
    choice = limited(files, choice, max_bytes=options.max_bytes, max_files=options.max_files)
    engine, engine_reason = chosen_engine(options, int(files.size[choice.rows].sum()))
    return Survey(
        snapshot=snapshot,
        files=files,
        choice=choice,
        contract=contract,
        engine=engine,
        why=engine_reason,
        workers=options.workers or (default_workers() if engine == "local" else None),
        notes=(*archived_note(int(archived.sum())), *doubled_note(int(files.doubled.sum()))),
    )


def plan_fields(surveyed: Survey) -> dict[str, Any]:
    """Returns the fields of a `RewritePlan` that follow from a survey."""
    files, choice, contract = surveyed.files, surveyed.choice, surveyed.contract
    rows, target = choice.rows, contract.spec.target_bytes
    after = np.ceil(files.live_bytes[rows] * choice.ratio)
    count = choice.bin_count
    bytes_after = int(after.sum())
    empty = (files.rows[rows] >= 0) & (files.deleted[rows] >= files.rows[rows])
    new_files = _new_files(choice, after, empty, target)
    # A Spark task rewrites one bin at a time.
    in_process = 1 if surveyed.engine == "spark" else surveyed.workers or 1
    fields: dict[str, Any] = {
        "table": surveyed.snapshot.table,
        "version": surveyed.snapshot.version,
        "is_noop": not count,
        "num_files": files.count,
        "files": len(rows),
        "files_after": int(new_files.sum()),
        "bytes": int(files.size[rows].sum()),
        "bytes_to_copy": _bytes_to_copy(files.size[rows], contract),
        "bytes_after": bytes_after,
        "deleted_rows": int(files.deleted[rows].sum()),
        "bins": count,
        "commits": _commits(bytes_after) if count else 0,
        "target_bytes": target,
        "row_group_rows": contract.spec.files.group_rows,
        "engine": surveyed.engine,
        "workers": surveyed.workers,
        "memory_bytes": memory_bound(
            in_process,
            contract.spec.files.group_bytes,
            0 if contract.spec.clustering is None else contract.spec.clustering.sort_bytes,
        ),
        "reasons": _counts(files, choice.reasons),
        "left_alone": _counts(files, choice.left),
        "notes": (
            *surveyed.notes,
            *stats_columns_note(surveyed.snapshot),
            *commit_notes(surveyed.snapshot),
        ),
    }
    return fields | _partitions(files, choice, new_files)


def chosen_engine(options: RewriteOptions, size: int) -> tuple[Literal["local", "spark"], str]:
    """Returns the engine for a number of bytes, and the reason."""
    if options.engine == "local":
        return "local", "the local engine was asked for"
    if options.engine == "spark":
        return "spark", "Spark was asked for"
    if size >= options.auto_spark_bytes:
        return "spark", "that is more than one process should rewrite"
    return "local", "that is little enough for one process"


def _possible(snapshot: Snapshot, contract: Contract, wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted reasons that files of the table can have."""
    layout = contract.spec.files.layout
    dropped = may_have_dropped_columns(snapshot.metadata, layout.mode)
    return tuple(name for name in wanted if name != DROPPED_COLUMNS or dropped)


def asked_partitions(snapshot: Snapshot, files: LiveColumns, where: str | None) -> Mask:
    """Returns the partitions for which the condition is true."""
    count = len(files.last_write)
    if where is None:
        return np.ones(count, np.bool_)
    names = snapshot.metadata.partition_columns
    if not names:
        raise InvalidRequestError(
            "the table has no partitions, so a condition on partition columns cannot be used",
            remedy="leave out --where",
        )
    physical = dict(zip(names, snapshot.log.physical_partition_columns, strict=True))
    schema = parse_schema(snapshot.metadata.schema_string or "")
    types = {}
    for name in names:
        column = schema.find(name)
        if column is not None:
            types[name] = column.type
    strings = {name: files.partitions[physical[name]] for name in types}
    return partition_filter(where, strings, types)


def written_lately_in(files: LiveColumns, quiet_for: timedelta | None, now: datetime) -> Mask:
    """Returns the partitions that were written to within `quiet_for`."""
    if quiet_for is None:
        return np.zeros(len(files.last_write), np.bool_)
    # Computed in milliseconds, because `datetime` may be unable to represent the instant.
    since = epoch_millis(now) - quiet_for // timedelta(milliseconds=1)
    is_recent: Mask = files.last_write > since
    return is_recent


def archived_in(snapshot: Snapshot, files: LiveColumns, now: datetime) -> Mask:
    """Returns the files that are archived according to the property `delta.timeUntilArchived`."""
    before = archived_before(snapshot, now)
    if before is None:
        return np.zeros(files.count, np.bool_)
    is_archived: Mask = files.modified <= before
    return is_archived


def archived_before(snapshot: Snapshot, now: datetime) -> int | None:
    """Returns the time up to which data files count as archived, in milliseconds since 1970-01-01
    UTC; None if the property `delta.timeUntilArchived` is not set.
    """
    age = snapshot.properties.time_until_archived
    return None if age is None else epoch_millis(now) - age // timedelta(milliseconds=1)


def archived_note(files: int) -> tuple[str, ...]:
    """Returns a note that counts the archived files, if there are any."""
    if not files:
        return ()
    count = count_text(files, "file")
    return (f"not read and not rewritten: {count} archived according to delta.timeUntilArchived",)


def stats_columns_note(snapshot: Snapshot) -> tuple[str, ...]:
    """Says why new files get other statistics than the table seems to ask for."""
    problem = stats_columns_problem(snapshot.metadata)
    return () if problem is None else (f"{problem}; correct it with set-properties",)


def doubled_note(files: int) -> tuple[str, ...]:
    """Returns a note that counts the files whose removal failed, if there are any."""
    if not files:
        return ()
    return (
        f"left out, see fsck: {count_text(files, 'file')} that other writers removed without their "
        "deletion vector or under another spelling, so that rows are read that should not be",
    )


def _budget(files: LiveColumns, choice: Choice, now: datetime) -> float:
    """Returns how many bytes of earlier rewrites may be rewritten now, based on the last week.

    Chosen files that no rewrite has made count at any age: the merging of a table that is appended
    to no longer, or that had to wait, does not wait for further appends.
    """
    since = epoch_millis(now - _WEEK)
    recent = files.modified >= since
    recent[choice.rows] = True
    fresh = (files.target == 0) & recent
    lately = files.replaced.at >= since
    gone = files.replaced.size[lately & ~files.replaced.made].sum()
    again = files.replaced.size[lately & files.replaced.made].sum()
    return float(max(0, AMPLIFICATION * (files.size[fresh].sum() + gone) - again))


def _sampled_ratio(
    snapshot: Snapshot, files: LiveColumns, choice: Choice, contract: Contract
) -> float:
    """Returns the ratio of bytes after to bytes before in a sample of the chosen files."""
    small = choice.rows[choice.reasons[SMALL][choice.rows]]
    sample = small[np.linspace(0, len(small) - 1, min(len(small), _SAMPLED_FILES)).astype(np.int64)]
    sources = [
        SourceFile(
            path=files.path[row].as_py(),
            partition_values=tuple(sorted(files.values(int(files.partition[row])).items())),
            size=int(files.size[row]),
        )
        for row in sample.tolist()
    ]
    ratio = size_ratio(snapshot.log.store, sources, contract.spec)
    return 1.0 if ratio is None else limited_ratio(ratio)


def _new_files(
    choice: Choice, after: np.ndarray[Any, Any], empty: Mask, target: int
) -> np.ndarray[Any, Any]:
    """Estimates the number of new files of each bin."""
    count = choice.bin_count
    sizes = np.bincount(choice.bins, after, count)
    alive = np.bincount(choice.bins, ~empty, count) > 0
    return np.where(alive, np.maximum(1, np.floor(sizes / target)), 0).astype(np.int64)


def _bytes_to_copy(sizes: np.ndarray[Any, Any], contract: Contract) -> int:
    """Returns the bytes of the files that are large enough to have row groups that are copied."""
    least = contract.spec.copied_group_bytes
    if least is None or contract.spec.clustering is not None:
        return 0
    return int(sizes[sizes >= least].sum())


def _commits(size: int) -> int:
    return min(MOST_COMMITS, max(1, math.ceil(size / COMMIT_BYTES)))


def _counts(files: LiveColumns, masks: Mapping[str, Mask]) -> tuple[ReasonCount, ...]:
    counts = (
        ReasonCount(reason=name, files=int(mask.sum()), bytes=int(files.size[mask].sum()))
        for name, mask in masks.items()
    )
    return tuple(count for count in counts if count.files)


def _partitions(
    files: LiveColumns, choice: Choice, new_files: np.ndarray[Any, Any]
) -> dict[str, Any]:
    if not choice.bin_count:
        return {"partitions": (), "num_partitions": 0}
    rows = choice.rows
    numbers, own_numbers = np.unique(files.partition[rows], return_inverse=True)
    count = len(numbers)
    first_rows = np.searchsorted(choice.bins, np.arange(choice.bin_count))
    after = np.bincount(own_numbers[first_rows], new_files, count).astype(np.int64)
    before = np.bincount(own_numbers, minlength=count)
    sizes = np.bincount(own_numbers, files.size[rows], count).astype(np.int64)
    deleted = np.bincount(own_numbers, files.deleted[rows], count).astype(np.int64)
    largest = np.argsort(-before, kind="stable")[:_SHOWN_PARTITIONS]
    shown = tuple(
        PartitionPlan(
            values=files.values(int(numbers[at])),
            files=int(before[at]),
            files_after=int(after[at]),
            bytes=int(sizes[at]),
            deleted_rows=int(deleted[at]),
        )
        for at in largest.tolist()
    )
    return {"partitions": shown, "num_partitions": count}
