"""Checks protocol, metadata, schema and live files of one version by their actions.

Implements the requirements of "Protocol Evolution", "Table Features", "Change Metadata", "Column
Mapping", "Schema Serialization Format", "Per-file Statistics", "Deletion Vectors", "Row Tracking"
and "Action Reconciliation" that can be checked with the actions alone. Opens no file, except for
the footers of files whose row IDs look wrong and whose number of rows is not in the log. The work
on files is in columns throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import LiveFiles
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.actions.paths import PathAudit
from delta_maintenance.protocol.columns import booleans, integers
from delta_maintenance.protocol.data_files.layout import required_columns
from delta_maintenance.protocol.features.registry import (
    find_feature,
    misplaced_features,
    supported_features,
    supports,
    with_requirements,
)
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import (
    Numbers,
    RowTrackingState,
    overlapping,
    row_tracking_state,
)
from delta_maintenance.protocol.schema.clustering import DOMAIN as CLUSTERING
from delta_maintenance.protocol.schema.clustering import clustering_columns
from delta_maintenance.protocol.schema.contradictions import contradictions
from delta_maintenance.protocol.schema.partition_values import is_valid, refusing_readers
from delta_maintenance.protocol.schema.types import (
    ArrayType,
    DeltaType,
    MapType,
    StructType,
    parse_schema,
    walk,
)
from delta_maintenance.protocol.statistics.clustering import current_columns
from delta_maintenance.protocol.statistics.columns import stats_columns_problem
from delta_maintenance.table.data.footers import RowCounter, with_last_count
from delta_maintenance.table.read.partition_codes import partition_types
from delta_maintenance.table.read.snapshot import Snapshot

_NEEDED = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Types that a schema may use only with a table feature."""
_EMPTY = '{"type":"struct","fields":[]}'


def check_state(snapshot: Snapshot, findings: Findings) -> None:
    """Adds the problems of a snapshot, except those of its files."""
    version = snapshot.version
    for kind, problem in (
        *_of_protocol(snapshot.protocol),
        *_of_metadata(snapshot),
        *contradictions(snapshot.protocol, snapshot.metadata, snapshot.domain_metadata),
        *_of_types(snapshot),
    ):
        findings.add(kind, problem, version=version)


def _of_protocol(protocol: Protocol) -> Iterator[tuple[str, str]]:
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for name in sorted(misplaced_features(protocol)):
        yield "misplaced-feature", f"the table feature {name} is in the wrong lists of the protocol"
    supported = supported_features(protocol)
    for name in sorted(with_requirements(supported) - supported):
        yield (
            "missing-feature",
            f"the table feature {name} is missing, but other features require it",
        )
    for name in sorted(listed):
        feature = find_feature(name)
        if feature is not None and feature.name != name:
            final = feature.name
            yield "draft-feature", f"the table feature {name} is a draft name of {final}"


def _of_metadata(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for problem in snapshot.properties.problems:
        yield "unreadable-property", problem
    with suppress(CorruptTableError):  # Reported with the schema.
        if (wrong_names := stats_columns_problem(snapshot.metadata)) is not None:
            yield "unreadable-property", wrong_names
    state = snapshot.log.state
    if state.draft_high_water_mark is not None:
        yield "draft-row-ids", "the log contains the action rowIdHighWaterMark of a draft from 2023"
    for name, domain in sorted(state.domains.items()):
        if domain.draft_map:
            yield "draft-row-ids", f"the configuration of the domain {name} is a map, as in a draft"
    if CLUSTERING not in state.domains and supports(snapshot.protocol, "clustering"):
        yield (
            "lost-clustering",
            f"the table has the feature clustering, but not the domain {CLUSTERING}: its "
            "clustering columns are lost, for example by a checkpoint without them",
        )
    with suppress(CorruptTableError):  # Reported with the schema.
        try:
            current_columns(snapshot.protocol, snapshot.metadata, snapshot.domain_metadata)
        except RefusedError as error:
            yield "lost-clustering", f"the domain {CLUSTERING} is damaged: {error.problem}"
    if clustering_columns(snapshot.domain_metadata) != () and snapshot.metadata.partition_columns:
        yield "clustered-and-partitioned", "the table is both clustered and partitioned"


def _of_types(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    try:
        schema = parse_schema(snapshot.metadata.schema_string or _EMPTY)
    except CorruptTableError:
        return
    supported = supported_features(snapshot.protocol)
    used = {name for _, field in walk(schema) for name in _names(field.type)}
    for name, feature in _NEEDED.items():
        if name in used and feature not in supported:
            yield "type-without-feature", f"the schema uses {name} without the feature {feature}"


def _names(kind: DeltaType) -> Iterator[str]:
    match kind:
        case ArrayType(element=element):
            yield from _names(element)
        case MapType(key=key, value=value):
            yield from _names(key)
            yield from _names(value)
        case StructType():
            return
        case _:
            yield str(kind)


def check_live_files(
    snapshot: Snapshot, files: LiveFiles, findings: Findings, *, count: RowCounter
) -> None:
    """Adds the problems of a snapshot's files. `count` reads numbers of rows from footers."""
    findings.add_files(
        "invalid-statistics",
        "its statistics are not a JSON object",
        paths=files.unreadable_statistics,
        version=snapshot.version,
    )
    audit = PathAudit(snapshot.table)
    # Without vectors: paths that are live with two vectors are found in the history.
    audit.add(files.adds.select(["path"]), files.tombstones.select(["path"]))
    if (problem := audit.problem()) is not None:
        findings.add("two-spellings", problem, version=snapshot.version)
    _check_partition_values(snapshot, files, findings)
    findings.add_files(
        "null-in-not-null-column",
        pc.binary_join_element_wise(
            "its statistics state nulls of", files.nulls["column"], "that is NOT NULL", " "
        ),
        paths=files.nulls["path"],
        version=snapshot.version,
    )
    _check_vectors(snapshot, files.adds, findings)
    _check_row_ids(snapshot, files, findings, count)


def _check_partition_values(snapshot: Snapshot, files: LiveFiles, findings: Findings) -> None:
    """Finds texts that are no values, and spellings that some readers refuse; one finding each."""
    try:
        types = partition_types(snapshot)
        required = required_columns(snapshot.protocol, snapshot.metadata)
    except CorruptTableError:
        return  # Reported with the schema.
    not_null = {column.path[0]: column.name for column in required if column.is_partition}
    for name, texts in files.partitions.items():
        values = texts.unify_dictionaries()
        if name in not_null:
            empty = pc.fill_null(pc.equal(values.cast(pa.string()), ""), True)
            findings.add_files(
                "null-in-not-null-column",
                f"it has no value of the partition column {not_null[name]}, which is NOT NULL",
                paths=files.adds["path"].filter(empty),
                version=snapshot.version,
            )
        if name not in types or not values.num_chunks:
            continue
        distinct = values.chunk(0).dictionary
        for text in distinct.filter(pc.invert(pc.equal(distinct, ""))).to_pylist():
            kind, why = "partition-value-spelling", refusing_readers(text, types[name])
            if not is_valid(text, types[name]):
                kind, why = "invalid-partition-value", "readers fail, or read null"
            if why is None:
                continue
            rows = pc.indices_nonzero(pc.equal(values.cast(pa.string()), text))
            findings.add(
                kind,
                f"the value {text!r} of {name}, of type {types[name]}, in "
                f"{count_text(len(rows), 'file')}: {why}",
                version=snapshot.version,
                path=files.adds["path"][rows[0].as_py()].as_py(),
            )


def _check_vectors(snapshot: Snapshot, adds: pa.Table, findings: Findings) -> None:
    with_vector = adds.filter(pc.is_valid(adds["deletionVector"]))
    if not with_vector.num_rows:
        return
    version, paths = snapshot.version, with_vector["path"]
    if not supports(snapshot.protocol, "deletionVectors"):
        problem = "the file has a deletion vector, but the table does not support deletionVectors"
        findings.add_files("vector-without-feature", problem, paths=paths, version=version)
    counts = with_vector["num_records"]
    problem = "the file has a deletion vector, but its statistics do not state its number of rows"
    uncounted = paths.filter(pc.is_null(counts))
    findings.add_files("vector-without-count", problem, paths=uncounted, version=version)
    marked = pc.struct_field(with_vector["deletionVector"], "cardinality")
    findings.add_files(
        "damaged-deletion-vector",
        "its deletion vector marks more rows than the file has",
        paths=paths.filter(pc.fill_null(pc.greater(marked, counts), False)),
        version=version,
    )


def _check_row_ids(
    snapshot: Snapshot, files: LiveFiles, findings: Findings, count: RowCounter
) -> None:
    version, adds = snapshot.version, files.adds
    state = row_tracking_state(snapshot.protocol, snapshot.metadata.configuration)
    if state is RowTrackingState.UNSUPPORTED:
        return
    late = pc.fill_null(pc.greater(adds["defaultRowCommitVersion"], version), False)
    problem = "its default row commit version is greater than the version of the table"
    paths = adds["path"].filter(late)
    findings.add_files("future-row-commit-version", problem, paths=paths, version=version)
    given = pc.is_valid(adds["baseRowId"])
    if state is RowTrackingState.ENABLED:
        paths = adds["path"].filter(pc.invert(given))
        problem = "row tracking is enabled, but the file has no row IDs"
        findings.add_files("missing-row-id", problem, paths=paths, version=version)
    domain = snapshot.log.state.domains.get(row_tracking.DOMAIN)
    mark, unknown_mark = row_tracking.NO_ROW_ID, None
    try:
        mark = row_tracking.high_water_mark(None if domain is None else domain.configuration)
    except CorruptTableError as error:
        unknown_mark = error.problem
    numbered = _count_rows(adds.filter(given), mark, count)
    overlaps, _ = _overlaps(numbered)
    findings.add_files(
        "overlapping-row-ids",
        "some of its row IDs belong to rows of another file too",
        paths=numbered["path"].take(integers(overlaps)),
        version=version,
    )
    if unknown_mark is not None:
        findings.add("row-id-mark-too-low", unknown_mark, version=version)
        return
    occupied = numbered.filter(pc.not_equal(pc.fill_null(numbered["num_records"], 1), 0))
    highest = row_tracking.highest_assigned_row_id(occupied["baseRowId"], occupied["num_records"])
    if state is RowTrackingState.SUSPENDED:
        return
    removed = with_last_count(files.removed, count).highest
    if max(highest, removed) > mark:
        use = f"{highest} is in use" if highest > mark else f"{removed} is that of a removed row"
        problem = f"the high-water mark is {mark}, but the row ID {use}"
        findings.add("row-id-mark-too-low", problem, version=version)


def _count_rows(numbered: pa.Table, mark: int, count: RowCounter) -> pa.Table:
    """Adds the numbers of rows of files that look wrong only if they are not empty.

    A file without a number of rows in the log counts as one row. If it then overlaps with another
    file or exceeds the high-water mark, its footer decides.
    """
    unknown = pc.is_null(numbered["num_records"]).to_numpy()
    if not unknown.any():
        return numbered
    suspect = numbered["baseRowId"].to_numpy() > mark
    for rows in _overlaps(numbered):
        suspect[rows] = True
    asked = np.flatnonzero(suspect & unknown)
    counts = count(numbered["path"].take(integers(asked)).combine_chunks()).counts
    # Files that cannot be read are reported elsewhere.
    filled = pc.replace_with_mask(
        numbered["num_records"].combine_chunks(),
        booleans(suspect & unknown),
        pc.fill_null(counts, 0),
    )
    at = numbered.column_names.index("num_records")
    return numbered.set_column(at, "num_records", filled)


def _overlaps(numbered: pa.Table) -> tuple[Numbers, Numbers]:
    # A file with an unknown number of rows has at least one.
    rows = pc.fill_null(numbered["num_records"], 1).to_numpy()
    return overlapping(numbered["baseRowId"].to_numpy(), rows)
