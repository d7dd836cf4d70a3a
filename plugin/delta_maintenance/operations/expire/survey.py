"""The live files with expired rows, according to the log. No data file is read.

Memory holds the paths of the files to change; `chosen` holds their complete adds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.expire.limit import Limit
from delta_maintenance.operations.layout.reading import file_statistics
from delta_maintenance.operations.vacuum.candidates import path_digest
from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, logical_file_keys
from delta_maintenance.protocol.columns import booleans, to_bools
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.statistics.bounds import (
    Mask,
    Numbers,
    RowAges,
    ages,
    column_bounds,
    partition_bounds,
)
from delta_maintenance.table.evidence.doubled_files import DoubledFileSearch
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.active_files import ActiveFiles
from delta_maintenance.table.read.partition_codes import partition_texts
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import adds_for_commits

_FIELDS = {
    "add": ("path", "deletionVector", "partitionValues", "size", "stats", "stats_parsed"),
    "remove": ("path", "deletionVector"),
}


_NONE = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Files of one kind."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, mask: Mask, size: Numbers) -> Count:
        """Counts the files of a mask."""
        return cls(files=int(mask.sum()), bytes=int(size[mask].sum()))

    def __add__(self, other: Count) -> Count:
        return Count(files=self.files + other.files, bytes=self.bytes + other.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The files of one version."""

    live: Count
    whole: Count
    rows: int | None
    """The live rows of whole files; None if the log does not state all of them."""
    mixed: Count
    unknown: Count
    doubled: int
    """Files that may have expired rows and are left out, because their removal failed."""
    invalid: int
    """Files whose partition value cannot be read, so that they stay."""
    paths_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Complete adds of files to change."""

    whole: pa.Table
    mixed: pa.Table
    """Those that must be read, unknown ones included; empty if they are left."""


def survey(snapshot: Snapshot, limit: Limit, *, reads_mixed: bool) -> Survey:
    """Counts the files with expired rows. `reads_mixed`: whether mixed files change as well."""

    def read(sound: Snapshot, doubled: pa.Array = _NONE) -> list[tuple[Survey, pa.Array]]:
        def part(batch: ActiveFiles) -> tuple[Survey, pa.Array]:
            return _part(batch.adds, limit, doubled, reads_mixed=reads_mixed)

        search = DoubledFileSearch(sound)
        surveyed_parts = list(in_parallel(part, search.watch(sound.log.scan(fields=_FIELDS))))
        if len(doubled) or not len(doubled := search.keys()):
            return surveyed_parts
        return read(sound, doubled)

    surveyed_parts = snapshot.avoiding_damage(read)
    counts = [each for each, _ in surveyed_parts]
    rows = [each.rows for each in counts]
    known_rows = [count for count in rows if count is not None]
    return Survey(
        live=sum((each.live for each in counts), Count()),
        whole=sum((each.whole for each in counts), Count()),
        rows=sum(known_rows) if len(known_rows) == len(rows) else None,
        mixed=sum((each.mixed for each in counts), Count()),
        unknown=sum((each.unknown for each in counts), Count()),
        doubled=sum(each.doubled for each in counts),
        invalid=sum(each.invalid for each in counts),
        paths_digest=path_digest([paths for _, paths in surveyed_parts]),
    )


def chosen(snapshot: Snapshot, limit: Limit, *, reads_mixed: bool) -> Chosen:
    """Returns the complete adds of the files to change, with statistics as JSON."""

    def read(sound: Snapshot) -> tuple[pa.Table, pa.Table]:
        whole: list[pa.Table] = []
        mixed: list[pa.Table] = []
        search = DoubledFileSearch(sound)
        for batch in search.watch(sound.log.scan()):
            judged = _judge_files(batch.adds, limit).ages
            whole.append(batch.adds.filter(booleans(judged.whole)))
            if reads_mixed:
                mixed.append(batch.adds.filter(booleans(judged.mixed | judged.unknown)))
        doubled = search.keys()
        mixed = [adds.filter(pc.invert(_among(adds, doubled))) for adds in mixed]
        return _complete(sound, whole), _complete(sound, mixed)

    choice = snapshot.avoiding_damage(read)
    return Chosen(whole=choice[0], mixed=choice[1])


def live_rows(adds: pa.Table, rows: Numbers) -> Numbers:
    """Returns the number of live rows of each file, of `rows` physical ones; -1 if unknown."""
    deleted: Any = 0
    if "deletionVector" in adds.column_names:
        marked = pc.struct_field(adds["deletionVector"], "cardinality")
        deleted = np.asarray(pc.fill_null(marked.cast(pa.int64()), 0), np.int64)
    return np.where(rows < 0, -1, np.maximum(rows - deleted, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    ages: RowAges
    size: Numbers
    rows: Numbers
    """Physical rows; -1 if the log does not state them."""
    invalid: int = 0


def _judge_files(adds: pa.Table, limit: Limit) -> _Judged:
    column = limit.column
    statistics = file_statistics(adds, [] if column.is_partition else [column])
    size, rows = statistics["size"].to_numpy(), statistics["rows"].to_numpy()
    if column.is_partition:
        texts = partition_texts(adds, [column.physical[0]])[column.physical[0]]
        parsed = parse_partition_values(texts, column.kind, zone=None, strict=False)
        bounds = partition_bounds(column.kind, parsed.values, np.arange(adds.num_rows))
        limits = np.where(to_bools(parsed.uncertain), limit.local, limit.value)
        invalid = int(to_bools(parsed.invalid).sum())
        return _Judged(ages=ages(bounds, limits), size=size, rows=rows, invalid=invalid)
    least, greatest, nulls = (
        statistics[f"0 {name}"].combine_chunks() for name in ("least", "greatest", "nulls")
    )
    bounds = column_bounds(column.kind, least=least, greatest=greatest, nulls=nulls, rows=rows)
    return _Judged(ages=ages(bounds, limit.value), size=size, rows=rows)


def _part(
    adds: pa.Table, limit: Limit, doubled: pa.Array, *, reads_mixed: bool
) -> tuple[Survey, pa.Array]:
    judged = _judge_files(adds, limit)
    found, size = judged.ages, judged.size
    # Removing a whole file is right in any case; other changes would make its rows permanent.
    left_out = to_bools(_among(adds, doubled).combine_chunks())
    may_expire = int((left_out & (found.mixed | found.unknown)).sum())
    found = replace(found, mixed=found.mixed & ~left_out, unknown=found.unknown & ~left_out)
    rows = live_rows(adds, judged.rows)[found.whole]
    changed = found.whole | found.mixed | found.unknown if reads_mixed else found.whole
    paths = adds["path"].filter(booleans(changed))
    return (
        Survey(
            live=Count(files=adds.num_rows, bytes=int(size.sum())),
            whole=Count.of(found.whole, size),
            rows=None if (rows < 0).any() else int(rows.sum()),
            mixed=Count.of(found.mixed, size),
            unknown=Count.of(found.unknown, size),
            doubled=may_expire,
            invalid=judged.invalid,
            paths_digest="",
        ),
        pa.concat_arrays([pa.array([], pa.string()), *paths.chunks]),
    )


def _among(adds: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    if not len(keys):
        return pa.chunked_array([booleans(np.zeros(adds.num_rows, np.bool_))])
    return pc.is_in(logical_file_keys(adds), value_set=keys)


def _complete(snapshot: Snapshot, adds: list[pa.Table]) -> pa.Table:
    complete_adds = list(adds_for_commits(snapshot, adds))
    if not complete_adds:
        return pa.schema(list(ADD_TYPES.items())).empty_table()
    return pa.concat_tables(complete_adds, promote_options="permissive")
