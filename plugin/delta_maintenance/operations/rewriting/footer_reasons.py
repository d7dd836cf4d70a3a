"""Reasons for rewriting a data file that are found in its footer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.rewriting.choice import Mask
from delta_maintenance.operations.rewriting.live_columns import LiveColumns
from delta_maintenance.protocol.data_files.other_columns import (
    holds_other_columns,
    holds_other_names,
    holds_other_types,
)
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.data_file_writer import DataFileSpec
from delta_maintenance.table.data.parquet_input import ParquetInput, reading_error
from delta_maintenance.table.data.places import place_of

DROPPED_COLUMNS, INT96, CODEC = "dropped-columns", "int96", "codec"
OLD_TYPES = "old-types"
PHYSICAL_NAMES = "physical-names"
_THREADS = 16
_AT_ONCE = 10_000
"""The number of files whose footers are read in one round, which bounds the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterReasons:
    """Finds the `wanted` reasons of each file from its footer.

    A file that cannot be read has no reason, because `fsck` reports it. With `strict`, its error is
    raised instead.
    """

    store: Store
    spec: DataFileSpec
    wanted: Sequence[str]
    strict: bool = False

    def __call__(self, files: LiveColumns, mask: Mask) -> Mapping[str, Mask]:
        """Returns which files have each wanted reason; files outside the mask have none."""
        found = {name: np.zeros(files.count, np.bool_) for name in self.wanted}
        rows = np.flatnonzero(mask) if self.wanted else np.zeros(0, np.int64)
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            paths = files.path.take(pa.array(part)).to_pylist()
            with ThreadPoolExecutor(_THREADS) as pool:
                for row, reasons in zip(part.tolist(), pool.map(self._of, paths), strict=True):
                    for name in reasons:
                        found[name][row] = True
        return found

    def _of(self, path: str) -> tuple[str, ...]:
        try:
            with ParquetInput(self.store.open(place_of(self.store, path))) as parquet:
                return tuple(name for name in self.wanted if self._has(name, parquet))
        except (DeltaMaintenanceError, OSError, pa.ArrowException) as error:
            if not self.strict:
                return ()
            if isinstance(error, DeltaMaintenanceError):
                raise error.located(file=path) from error.__cause__
            raise reading_error(error, file=path) from None

    def _has(self, name: str, parquet: ParquetInput) -> bool:
        test = _BY_SCHEMA.get(name)
        if test is not None:
            layout = self.spec.layout
            return test(parquet.schema, layout, parquet.stored_columns(layout.mode))
        match name:
            case "int96":
                return bool(parquet.int96)
        return bool(set(_codecs(parquet.metadata)) - {self.spec.codec.upper()})


_BY_SCHEMA = {
    DROPPED_COLUMNS: holds_other_columns,
    OLD_TYPES: holds_other_types,
    PHYSICAL_NAMES: holds_other_names,
}


def _codecs(metadata: pq.FileMetaData) -> Iterator[str]:
    """Yields the codecs of the first row group; writers use the same codecs for all row groups."""
    if metadata.num_row_groups:
        group = metadata.row_group(0)
        yield from {group.column(at).compression for at in range(group.num_columns)}
