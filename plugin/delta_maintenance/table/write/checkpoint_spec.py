"""The inputs of a checkpoint's content: its kind, its columns, and the expiry of tombstones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Literal

import pyarrow as pa

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    DeltaType,
    StructType,
    column_mapping_mode,
    parse_schema,
    physical_name,
)
from delta_maintenance.protocol.statistics.stats import statistics_arrow_type
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.action_file import ParquetStyle

WrittenKind = Literal["classic", "v2-classic", "v2-json", "v2-parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """Everything besides the snapshot that determines the content of a checkpoint."""

    kind: WrittenKind
    actions_per_sidecar: int
    """0 stores file actions in the top-level file."""
    layout: FileActionLayout
    style: ParquetStyle
    deleted_after_ms: int | None
    """Tombstones deleted at or before this instant are omitted; None keeps all."""
    txns_updated_after_ms: int | None
    """Transactions last updated at or before this instant are omitted; None keeps all."""

    @property
    def is_v2(self) -> bool:
        """Whether its content is that of a V2 checkpoint."""
        return self.kind != "classic"


def layout_of(snapshot: Snapshot, *, zone: tzinfo | None) -> FileActionLayout:
    """The columns that the table's properties and schema require.

    Partition values are typed only if their text is unambiguous; timestamps require a zone for
    that.
    """
    properties, metadata = snapshot.properties, snapshot.metadata
    as_struct = properties.write_stats_as_struct
    # Without structs there is nothing to convert, and the schema does not matter.
    if metadata.schema_string is None or not (as_struct or snapshot.checkpoint is not None):
        return FileActionLayout(stats_as_json=properties.write_stats_as_json, statistics_type=None)
    schema = parse_schema(metadata.schema_string)
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    statistics_type = statistics_arrow_type(
        schema,
        partition_columns=metadata.partition_columns,
        mode=mode,
        tight_bounds=supports(snapshot.protocol, "deletionVectors"),
    )
    partitions = _partition_types(metadata, schema, mode) if as_struct else {}
    zoneless = zone is None and any(str(kind) == "timestamp" for kind in partitions.values())
    return FileActionLayout(
        stats_as_json=properties.write_stats_as_json,
        statistics_type=statistics_type if as_struct else None,
        source_type=statistics_type,
        partition_types=None if zoneless or not partitions else partitions,
        zone=zone,
        columns=frozenset(physical_name(column, mode) for column in schema.fields),
    )


def adds_for_commits(snapshot: Snapshot, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields adds of a version with the fields of a commit, without empty batches.

    Statistics that only the structs of a checkpoint contain are rendered as JSON. Raises
    `RefusedError` if that would lose any.
    """
    layout = replace(
        layout_of(snapshot, zone=None),
        stats_as_json=True,
        statistics_type=None,
        partition_types=None,
    )
    for adds in batches:
        if adds.num_rows:
            layout = layout.widened(adds.schema, pa.schema([]))
            chunks = layout.adds(adds).chunks
            yield pa.Table.from_batches([pa.RecordBatch.from_struct_array(c) for c in chunks])


def _partition_types(
    metadata: Metadata, schema: StructType, mode: ColumnMappingMode
) -> dict[str, DeltaType]:
    partitions = {}
    for name in metadata.partition_columns:
        column = schema.find(name)
        if column is None:
            raise RefusedError(
                f"the partition column {name!r} is not in the schema",
                remedy="repair the table's metadata first",
            )
        partitions[physical_name(column, mode)] = column.type
    return partitions
