"""Judges the statistics of live files from the log alone, and replaces what is wrong.

Implements "Per-file Statistics" and "Writer Requirements for Clustered Table". Work is columnar:
one row per file, one column per column of the table that must have statistics. A bound is missing
only if it could exist: a column without values has none, and with NaN a file states no maxima.
Other bounds that cannot be stated, such as that of a date after the year 9999, are named by a tag
of the file, so that no later audit reports them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.columns import booleans, integers, to_bools
from delta_maintenance.protocol.data_files.tags import UNBOUNDED, with_tag
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema
from delta_maintenance.protocol.statistics.as_json import (
    align_statistics,
    parse_statistics,
    render_statistics,
)
from delta_maintenance.protocol.statistics.collect import ColumnStatistics, bound_array
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.protocol.statistics.stats import statistics_arrow_type

Mask = npt.NDArray[np.bool_]

_BOUNDS = {"minValues": False, "maxValues": True}
"""The parts of the statistics with bounds, and whether these are the greatest values."""
_EVERY_COLUMN = {"delta.dataSkippingNumIndexedCols": "-1", "delta.dataSkippingStatsColumns": ""}
_EXACT_DIGITS = 15
"""Decimals with at most so many digits survive a conversion to a double."""
AUDITED = ("path", "size", "modificationTime", "stats", "stats_parsed", "deletionVector", "tags")
"""The fields of an add that an audit reads."""


@dataclass(frozen=True, kw_only=True)
class RequiredStatistics:
    """The statistics that every live file of one version of a table should have."""

    columns: StatisticsColumns
    parsed_type: pa.StructType
    """The type of `stats_parsed`, in which bounds of floats are doubles, as JSON contains them."""

    @classmethod
    def of(
        cls,
        protocol: Protocol,
        metadata: Metadata,
        domains: Mapping[str, str],
        *,
        joining: Collection[tuple[str, ...]] = (),
        every_column: bool = False,
    ) -> Self:
        """Returns what the table requires, and will if it is clustered also by `joining`.

        With `every_column`, it includes the columns that the table leaves out. Raises
        `RefusedError` if the clustering columns cannot be determined.
        """
        if every_column:
            configuration = {**metadata.configuration, **_EVERY_COLUMN}
            metadata = replace(metadata, configuration=configuration)
        parsed_type = statistics_arrow_type(
            parse_schema(metadata.schema_string or ""),
            partition_columns=metadata.partition_columns,
            mode=column_mapping_mode(protocol, metadata.configuration),
            tight_bounds=True,
        )
        return cls(
            columns=StatisticsColumns.of(protocol, metadata, domains, joining=joining),
            parsed_type=_with_doubles(parsed_type),
        )

    @cached_property
    def has_inexact(self) -> bool:
        """Whether a column has bounds that some writers do not state exactly."""
        return any(self.is_inexact(leaf) for leaf in self.leaves)

    def is_inexact(self, leaf: StatisticsLeaf) -> bool:
        """Whether the bounds of a column are inexact if a writer computes them from a footer, or
        with doubles: those of a number with fractions.
        """
        kind = self.kind(leaf)
        return kind is not None and (
            pa.types.is_floating(kind)
            or (pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS)
        )

    @cached_property
    def has_floats(self) -> bool:
        """Whether a column that must have bounds can contain NaN."""
        kinds = (self.kind(leaf) for leaf in self.leaves)
        return any(kind is not None and pa.types.is_floating(kind) for kind in kinds)

    @property
    def leaves(self) -> tuple[StatisticsLeaf, ...]:
        """The columns that must have statistics."""
        return self.columns.leaves

    def kind(self, leaf: StatisticsLeaf) -> pa.DataType | None:
        """Returns the type of the bounds of a column; None if it has no bounds."""
        if not leaf.bounded:
            return None
        names = ("minValues", *leaf.path)
        return reduce(lambda kind, name: kind.field(name).type, names, self.parsed_type)


@dataclass(frozen=True, kw_only=True)
class AuditedFiles:
    """The statistics of a batch of files. Masks have one element per file."""

    required: RequiredStatistics
    parsed: pa.StructArray
    """The statistics of each file; null where there are none."""
    unreadable: Mask
    """The statistics are not a JSON object."""
    deleted: pa.Int64Array
    """The number of rows that the deletion vector marks; null if there is no deletion vector."""
    tags: pa.Array

    @cached_property
    def has_vector(self) -> Mask:
        """The file has a deletion vector."""
        return to_bools(pc.is_valid(self.deleted))

    @cached_property
    def rows(self) -> pa.Int64Array:
        """The number of physical rows that the statistics state, null if there is no valid one."""
        rows = self.part("numRecords")
        return pc.if_else(pc.greater_equal(rows, 0), rows, pa.scalar(None, pa.int64()))

    @cached_property
    def absent(self) -> Mask:
        """The file has no statistics that can be read."""
        return to_bools(pc.is_null(self.parsed))

    @cached_property
    def uncounted(self) -> Mask:
        """There is no number of rows."""
        return to_bools(pc.is_null(self.rows))

    @cached_property
    def tight(self) -> pa.BooleanArray:
        """The statistics are those of the live rows."""
        return pc.fill_null(self.part("tightBounds"), True)

    @cached_property
    def wide(self) -> Mask:
        """The bounds are not tight, although the file has no deletion vector."""
        return ~to_bools(self.tight) & ~self.has_vector

    @cached_property
    def computed(self) -> Mask:
        """This library has computed the statistics, and bounds are missing or were suspect."""
        return to_bools(pc.is_valid(self._unbounded_files))

    def without_null_count(self, leaf: StatisticsLeaf) -> Mask:
        """There is no number of nulls of a column, or an impossible one."""
        nulls = self.part("nullCount", *leaf.path)
        possible = pc.and_(pc.greater_equal(nulls, 0), pc.less_equal(nulls, self.rows))
        return ~to_bools(pc.fill_null(possible, False))

    def without_bounds(self, leaf: StatisticsLeaf) -> Mask:
        """There is no minimum or no maximum of a column that has values, or they contradict each
        other. Booleans may lack them, because Delta Spark writes none.
        """
        kind = self.required.kind(leaf)
        if kind is None or pa.types.is_boolean(kind):
            return np.zeros(len(self.parsed), np.bool_)
        lowest, highest = (self.part(name, *leaf.path) for name in ("minValues", "maxValues"))
        nulls = self.part("nullCount", *leaf.path)
        counted = _counted_rows(self.rows, self.deleted, self.tight)
        only_nulls = to_bools(pc.fill_null(pc.equal(nulls, counted), False))
        missing = to_bools(pc.is_null(lowest)) & ~self._omits("minValues")
        missing |= to_bools(pc.is_null(highest)) & ~self._omits("maxValues")
        # NaN, which is no less and no greater than any number, stands for the greatest value.
        crossed = to_bools(pc.fill_null(pc.greater(lowest, highest), False))
        return crossed | (missing & ~only_nulls & ~self._is_unbounded(leaf))

    def lacks_boolean_bounds(self, leaf: StatisticsLeaf) -> Mask:
        """There is no minimum or no maximum of a column of booleans."""
        if self.required.kind(leaf) != pa.bool_():
            return np.zeros(len(self.parsed), np.bool_)
        validity = (pc.is_valid(self.part(name, *leaf.path)) for name in ("minValues", "maxValues"))
        return ~to_bools(pc.and_(*validity))

    def bounded_files(self, leaf: StatisticsLeaf) -> Mask:
        """There are a minimum and a maximum of a column whose bounds some writers do not state
        exactly.
        """
        if not self.required.is_inexact(leaf):
            return np.zeros(len(self.parsed), np.bool_)
        validity = (pc.is_valid(self.part(name, *leaf.path)) for name in ("minValues", "maxValues"))
        return to_bools(pc.and_(*validity))

    def stated_columns(self, leaves: Iterable[StatisticsLeaf]) -> list[StatisticsLeaf]:
        """Returns the columns of which any file states something."""
        names, count = (*_BOUNDS, "nullCount"), len(self.parsed)
        return [
            leaf
            for leaf in leaves
            if any(self.part(name, *leaf.path).null_count < count for name in names)
        ]

    def take(self, rows: npt.NDArray[np.int64]) -> AuditedFiles:
        """Returns some of the files."""
        return AuditedFiles(
            required=self.required,
            parsed=self.parsed.take(integers(rows)),
            unreadable=self.unreadable[rows],
            deleted=self.deleted.take(integers(rows)),
            tags=self.tags.take(integers(rows)),
        )

    def part(self, *path: str) -> pa.Array:
        """Returns one part of the statistics, such as `numRecords`; nulls if the type lacks it."""
        column = self._parts.get(path)
        return pa.nulls(len(self.parsed), pa.int64()) if column is None else column

    @cached_property
    def _parts(self) -> Mapping[tuple[str, ...], pa.Array]:
        # All at once: to take one field, Arrow visits every field of the structs around it.
        return dict(_fields(self.parsed, ()))

    def _is_unbounded(self, leaf: StatisticsLeaf) -> Mask:
        if not self.computed.any():
            return np.zeros(len(self.parsed), np.bool_)
        return is_tagged_unbounded(self._unbounded_files, leaf.path)

    def _omits(self, name: str) -> Mask:
        """The file states none of these bounds, because that of one column cannot be stated."""
        none = to_bools(pc.is_null(self.part(name)))
        may_have_nan = name == "maxValues" and self.required.has_floats
        return none if may_have_nan else none & self.computed

    @cached_property
    def _unbounded_files(self) -> pa.StringArray:
        return unbounded_columns(self.tags)


def unbounded_columns(tags: pa.Array) -> pa.StringArray:
    """Returns the tag of each file that names columns whose bounds cannot be stated."""
    if pa.types.is_null(tags.type):
        return pa.nulls(len(tags), pa.string())
    return pc.map_lookup(tags, UNBOUNDED, "last")


def is_tagged_unbounded(tags: pa.StringArray, path: Sequence[str]) -> Mask:
    """Returns which of these tags name a column."""
    entry = json.dumps(".".join(path))
    return to_bools(pc.fill_null(pc.match_substring(tags, entry), False))


def audit(adds: pa.Table, required: RequiredStatistics) -> AuditedFiles:
    """Reads the statistics of live files from `stats` or, where that is absent, `stats_parsed`."""
    stated = parse_statistics(_text(adds), required.parsed_type)
    parsed = stated.values
    vectors = _column(adds, "deletionVector")
    structs = _column(adds, "stats_parsed")
    if pa.types.is_struct(structs.type) and parsed.null_count:
        aligned = align_statistics(structs, required.parsed_type).values
        parsed = pc.if_else(pc.is_valid(_text(adds)), parsed, aligned)
    return AuditedFiles(
        required=required,
        parsed=parsed,
        unreadable=to_bools(stated.unreadable),
        deleted=pc.if_else(
            pc.is_valid(vectors),
            pc.fill_null(pc.struct_field(vectors, "cardinality"), 0).cast(pa.int64()),
            pa.scalar(None, pa.int64()),
        ),
        tags=_column(adds, "tags"),
    )


def rounded_decimals(adds: pa.Table, required: RequiredStatistics, leaf: StatisticsLeaf) -> Mask:
    """Marks the files with a bound of a column in exponential form, which is how writers that
    convert decimals to doubles state long ones.
    """
    kind = required.kind(leaf)
    if kind is None or not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS:
        return np.zeros(adds.num_rows, np.bool_)
    name = re.escape(json.dumps(leaf.path[-1], ensure_ascii=False))
    exponential = rf"{name}:\s*-?[0-9.]+[eE]"
    return to_bools(pc.fill_null(pc.match_substring_regex(_text(adds), exponential), False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedStatistics:
    """New statistics of one file."""

    rows: int
    """Physical rows."""
    bounds: Mapping[tuple[str, ...], ColumnStatistics]
    """Those of the replaced columns, by physical path."""
    tight: bool = True
    """Whether they are those of the live rows."""


def with_statistics(
    adds: pa.Table,
    audited: AuditedFiles,
    computed: Sequence[ComputedStatistics],
    *,
    extra_leaves: Sequence[StatisticsLeaf] = (),
) -> pa.Table:
    """Returns the adds with new statistics: a column of a file that is not replaced keeps those
    that it has. `extra_leaves` are replaced too, and need not have any.

    `audited` and `computed` have one row per add. All files get the tag of computed statistics if
    some writers do not state the bounds of a column exactly, also if all bounds could be stated.
    """
    required, count = audited.required, adds.num_rows
    replaced: dict[tuple[str, ...], pa.Array] = {
        ("numRecords",): pa.array([statistics.rows for statistics in computed], pa.int64()),
        ("tightBounds",): pa.array([statistics.tight for statistics in computed], pa.bool_())
        if required.columns.tight_bounds
        else pa.nulls(count, pa.bool_()),
    }
    tight = pa.array([statistics.tight for statistics in computed], pa.bool_())
    counted = _counted_rows(replaced["numRecords",], audited.deleted, tight)
    unbounded = pa.repeat("", count)
    incomplete = {name: np.zeros(count, np.bool_) for name in _BOUNDS}
    beside = {leaf.path for leaf in extra_leaves}
    for leaf in (*required.leaves, *extra_leaves):
        bounds = [statistics.bounds.get(leaf.path) for statistics in computed]
        nulls = [None if statistics is None else statistics.nulls for statistics in bounds]
        columns = {"nullCount": pa.array(nulls, pa.int64())}
        kind, is_computed = (
            required.kind(leaf),
            booleans(np.array([statistics is not None for statistics in bounds])),
        )
        if kind is not None:
            for name, greatest in _BOUNDS.items():
                values = [
                    None if statistics is None else statistics.render(greatest=greatest)
                    for statistics in bounds
                ]
                columns[name] = bound_array(values, kind)
        for name, values in columns.items():
            path = (name, *leaf.path)
            replaced[path] = pc.if_else(is_computed, values, audited.part(*path))
        if kind is not None and leaf.path not in beside:
            has_values = pc.fill_null(pc.less(replaced["nullCount", *leaf.path], counted), True)
            lacks = {
                name: to_bools(pc.and_(has_values, pc.is_null(replaced[name, *leaf.path])))
                for name in _BOUNDS
            }
            for name, mask in lacks.items():
                incomplete[name] |= mask
            either = booleans(np.logical_or(*lacks.values()))
            entry = pc.if_else(either, "," + json.dumps(".".join(leaf.path)), "")
            unbounded = pc.binary_join_element_wise(unbounded, entry, "")
    parsed = _without_parts(_rebuilt(audited.parsed, replaced, ()), incomplete)
    stats = render_statistics(parsed, required.parsed_type).values
    adds = _with_column(adds, "stats", stats)
    if "stats_parsed" in adds.column_names:
        adds = adds.drop_columns(["stats_parsed"])
    names = pc.binary_join_element_wise("[", pc.utf8_slice_codeunits(unbounded, 1), "]", "")
    keeps_names = pc.or_(
        pc.not_equal(unbounded, ""), booleans(audited.computed | required.has_inexact)
    )
    texts = pc.if_else(keeps_names, names, pa.scalar(None, pa.string()))
    return _with_column(adds, "tags", with_tag(_column(adds, "tags"), UNBOUNDED, texts))


def with_live_bounds(
    adds: pa.Table, required: RequiredStatistics, computed: Sequence[ComputedStatistics]
) -> pa.Table:
    """Returns adds of files that get other deletion vectors: with statistics that state their
    physical rows, and that bounds may be those of deleted rows.

    `computed` has, for each file, bounds of live rows for some columns; others are kept.
    """
    report = audit(adds, required)
    replaced: dict[tuple[str, ...], pa.Array] = {
        ("numRecords",): pa.array([statistics.rows for statistics in computed], pa.int64()),
        ("tightBounds",): pa.repeat(False, adds.num_rows),
    }
    for leaf in required.leaves:
        leaf_bounds = [statistics.bounds.get(leaf.path) for statistics in computed]
        kind = required.kind(leaf)
        is_computed = np.array([statistics is not None for statistics in leaf_bounds], np.bool_)
        if kind is None or not is_computed.any():
            continue
        for name, greatest in _BOUNDS.items():
            values = bound_array(
                [statistics and statistics.render(greatest=greatest) for statistics in leaf_bounds],
                kind,
            )
            path = (name, *leaf.path)
            replaced[path] = pc.if_else(booleans(is_computed), values, report.part(*path))
        # A number of nulls that equals that of the physical rows says that all live rows are null.
        empty = np.array(
            [statistics is not None and statistics.least is None for statistics in leaf_bounds],
            np.bool_,
        )
        null_counts = pc.coalesce(
            report.part("nullCount", *leaf.path),
            pa.array(
                [None if statistics is None else statistics.nulls for statistics in leaf_bounds],
                pa.int64(),
            ),
        )
        nulls = pc.if_else(booleans(empty), replaced["numRecords",], null_counts)
        replaced["nullCount", *leaf.path] = nulls
    stats = render_statistics(_rebuilt(report.parsed, replaced, ()), required.parsed_type).values
    return _with_column(adds, "stats", stats)


def _fields(
    values: pa.StructArray, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
    """Yields the path and the values of each field; null where a struct around it is."""
    for field, child in zip(values.type, values.flatten(), strict=True):
        path = (*above, field.name)
        yield path, child
        if pa.types.is_struct(field.type):
            yield from _fields(child, path)


def _counted_rows(rows: pa.Array, deleted: pa.Array, tight: pa.Array) -> pa.Array:
    """Returns the number of rows among which nulls are counted: all rows, or the live ones."""
    return pc.if_else(tight, pc.subtract(rows, pc.fill_null(deleted, 0)), rows)


def _rebuilt(
    struct: pa.StructArray, replaced: Mapping[tuple[str, ...], pa.Array], above: tuple[str, ...]
) -> pa.StructArray:
    """Returns the struct with other leaves. Inner structs without values are null."""
    children = []
    for field, child in zip(struct.type, struct.flatten(), strict=True):
        path = (*above, field.name)
        if pa.types.is_struct(field.type):
            child = _rebuilt(child, replaced, path)
        children.append(replaced.get(path, child))
    empty = np.logical_and.reduce([to_bools(pc.is_null(child)) for child in children])
    return pa.StructArray.from_arrays(children, fields=list(struct.type), mask=booleans(empty))


def _without_parts(parsed: pa.StructArray, left_out: Mapping[str, Mask]) -> pa.StructArray:
    """Returns statistics in which some files have no minima, or no maxima, of any column."""
    children = [
        pc.if_else(booleans(left_out[field.name]), pa.scalar(None, field.type), child)
        if field.name in left_out
        else child
        for field, child in zip(parsed.type, parsed.flatten(), strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(parsed.type), mask=pc.is_null(parsed))


def _with_doubles(kind: Any) -> Any:
    if not pa.types.is_struct(kind):
        return pa.float64() if pa.types.is_floating(kind) else kind
    return pa.struct([field.with_type(_with_doubles(field.type)) for field in kind])


def _text(adds: pa.Table) -> pa.Array:
    text = _column(adds, "stats")
    return text if pa.types.is_string(text.type) else text.cast(pa.string())


def _column(adds: pa.Table, name: str) -> pa.Array:
    if name not in adds.column_names:
        return pa.nulls(adds.num_rows, ADD_TYPES.get(name, pa.null()))
    column = adds[name]
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _with_column(adds: pa.Table, name: str, values: pa.Array) -> pa.Table:
    if name in adds.column_names:
        return adds.set_column(adds.column_names.index(name), name, values)
    return adds.append_column(name, values)
