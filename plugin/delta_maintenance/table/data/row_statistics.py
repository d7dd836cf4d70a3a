"""The statistics of data files, computed from their rows.

Only the columns that are needed are decoded, in bounded memory. Implements "Per-file Statistics".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.statistics.collect import ColumnBounds, StatisticsCollector
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_reader import DataFileReader, SourceFile


def row_statistics(
    store: Store,
    layout: DataFileLayout,
    file: SourceFile,
    leaves: Collection[StatisticsLeaf],
    *,
    live: bool,
) -> Mapping[tuple[str, ...], ColumnBounds]:
    """Returns the statistics of some columns, by physical path.

    Without `live`, deleted rows are included. Errors are those of `DataFileReader.read`.
    """
    part = layout.only({leaf.path[0] for leaf in leaves})
    required = StatisticsColumns(leaves=tuple(leaves), tight_bounds=False)
    collector = StatisticsCollector(required, part.schema)
    for rows in DataFileReader(store, part).read(file):
        collector.offer(rows.live() if live else rows.batch)
    return {leaf.path: collector.bounds(leaf.path) for leaf in leaves}
