"""The properties of a table that determine how new files are written, checked before each commit.

Other writers may change any property during a rewrite. Therefore all of these properties, not only
the schema, are compared with those of each version on top of which files are committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from delta_maintenance.errors import DeltaMaintenanceError, locating
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.changes.usage import without_mapping
from delta_maintenance.protocol.data_files.layout import (
    DataFileLayout,
    iceberg_compat,
    required_columns,
)
from delta_maintenance.protocol.data_files.names import FileNaming
from delta_maintenance.protocol.features.registry import Operation, supports
from delta_maintenance.protocol.schema.clustering import DOMAIN as CLUSTERING
from delta_maintenance.protocol.schema.clustering import clustering_columns, with_logical_names
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema
from delta_maintenance.protocol.statistics.clustering import ClusteringTags
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.table.data.bins import Proof, RewriteSpec
from delta_maintenance.table.data.data_file_writer import DataFileSpec
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.writable import require_writable
from delta_maintenance.table.write.checkpoint_spec import ParquetStyle

COPIED_GROUP_BYTES = 8 << 20
"""The average size in bytes from which row groups are copied instead of merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """How one version of the table requires the new files of a run to be written."""

    table_id: str | None
    spec: RewriteSpec
    iceberg_compat: int | None
    clustered: tuple[tuple[str, ...], ...]
    """The clustering columns, which need statistics."""
    clustering: ClusteringTags | None = None
    """The tags of new files whose rows have the order of a curve."""

    @classmethod
    def of(cls, snapshot: Snapshot, *, target_bytes: int, proof: Proof) -> Contract:
        """Derives the contract from a version.

        Raises the errors of `require_writable`, and `RefusedError` if this release must not rewrite
        the files of the table.
        """
        with locating(table=snapshot.table, version=snapshot.version):
            require_writable(snapshot, Operation.REWRITE_DATA)
            layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
            domains = snapshot.domain_metadata
            return cls._of(snapshot, snapshot.metadata, domains, layout, target_bytes, proof)

    @classmethod
    def without_mapping(cls, snapshot: Snapshot, *, target_bytes: int, proof: Proof) -> Contract:
        """Derives the contract for new files that are valid after the removal of column mapping.

        Raises the same errors as `of`.
        """
        with locating(table=snapshot.table, version=snapshot.version):
            require_writable(snapshot, Operation.REWRITE_DATA)
            layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata, unmaps=True)
            after, domains = without_mapping(snapshot.metadata), unmapped_domains(snapshot)
            return cls._of(snapshot, after, domains, layout, target_bytes, proof)

    @classmethod
    def _of(
        cls,
        snapshot: Snapshot,
        metadata: Metadata,
        domains: Mapping[str, str],
        layout: DataFileLayout,
        target_bytes: int,
        proof: Proof,
    ) -> Contract:
        protocol, properties = snapshot.protocol, snapshot.properties
        required = required_columns(protocol, snapshot.metadata, unmaps=layout.unmaps)
        layout = replace(layout, required=required)
        style = ParquetStyle.of_table(
            properties.parquet_compression_codec, properties.parquet_format_version
        )
        columns = [item.name for item in layout.partition_columns.fields]
        return cls(
            table_id=metadata.id,
            spec=RewriteSpec(
                files=DataFileSpec(
                    layout=layout,
                    statistics=StatisticsColumns.of(protocol, metadata, domains),
                    codec=style.codec,
                    page_version=style.page_version,
                ),
                naming=FileNaming.of(metadata.configuration, columns, layout.written.mode),
                target_bytes=target_bytes,
                proof=proof,
                # Copied row groups have no partition columns, and the version of their pages is
                # unknown.
                copied_group_bytes=None
                if layout.materializes_partitions
                or layout.unmaps
                or iceberg_compat(protocol, properties) is not None
                or properties.parquet_format_version is not None
                else COPIED_GROUP_BYTES,
                copied_codec=None if properties.parquet_compression_codec is None else style.codec,
            ),
            iceberg_compat=iceberg_compat(protocol, properties),
            clustered=clustering_columns(domains) or (),
        )

    def broken_by(self, snapshot: Snapshot) -> str | None:
        """Returns why files with this contract are invalid in a later version, as a clause.

        None if they are valid.
        """
        try:
            unmaps, spec = self.spec.files.layout.unmaps, self.spec
            of = Contract.without_mapping if unmaps else Contract.of
            later = of(snapshot, target_bytes=spec.target_bytes, proof=spec.proof)
        except DeltaMaintenanceError as error:
            return error.problem
        if later.table_id != self.table_id:
            return "the table was replaced by another table"
        if not later.spec.files.layout.takes_files_of(self.spec.files.layout):
            return "the columns, the partitioning or the row tracking of the table changed"
        if later.iceberg_compat != self.iceberg_compat:
            return "the Iceberg compatibility of the table changed"
        in_cube = self.clustering is not None and self.clustering.cube is not None
        if in_cube and later.clustered != self.clustered:
            return "the clustering columns of the table changed"
        leaves = (leaf.path for leaf in self.spec.files.statistics.leaves)
        # Statistics of a struct are those of its fields.
        known_paths = {path[:depth] for path in leaves for depth in range(1, len(path) + 1)}
        written = {item.name for item in self.spec.files.layout.columns.fields}
        # Files that lack a column need no bounds for it.
        missing = [
            path for path in later.clustered if path not in known_paths and path[0] in written
        ]
        if missing:
            column = ".".join(missing[0])
            return f"the table is clustered by {column}, and new files have no statistics of it"
        return None

    @staticmethod
    def writes_vectors(snapshot: Snapshot) -> bool:
        """Whether new files may have deletion vectors at this version."""
        return (
            supports(snapshot.protocol, "deletionVectors")
            and snapshot.properties.enable_deletion_vectors
            and iceberg_compat(snapshot.protocol, snapshot.properties) is None
        )


def unmapped_domains(snapshot: Snapshot) -> dict[str, str]:
    """Returns the domains of a table after the removal of column mapping.

    Clustering columns then have logical names. Raises `RefusedError` if these cannot be determined.
    """
    domains, metadata = dict(snapshot.domain_metadata), snapshot.metadata
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    clustering = domains.get(CLUSTERING)
    if clustering is not None and mode != "none":
        schema = parse_schema(metadata.schema_string or "")
        domains[CLUSTERING] = with_logical_names(clustering, schema, mode)
    return domains
