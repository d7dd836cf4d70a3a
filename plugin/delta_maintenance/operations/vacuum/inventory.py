"""Inventories: lists of a table's files made elsewhere, by an object store or a query.

An inventory only suggests files: before a deletion, the status of each file is read from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, StorageError
from delta_maintenance.protocol.actions.paths import ABSOLUTE, below_root
from delta_maintenance.protocol.schema.types import column_mapping_mode
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import TREE, EntryKind, tree_of
from delta_maintenance.storage.core.paths import decode_log_path
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.table import Table

COLUMNS = {
    "path": pa.string(),
    "length": pa.int64(),
    "isDir": pa.bool_(),
    "modificationTime": pa.int64(),
}
"""The required columns of an inventory, the same as in Delta Spark."""


def read_inventory(
    address: str, *, roots: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> pa.Table:
    """Reads the files that an inventory lists below a table's root, as a `listing.TREE` without
    times.

    `address` is that of a Parquet file, of a folder of Parquet files or of a Delta table. Its paths
    are literal: relative to the root, or beginning with one of its addresses; all others are
    ignored. `InvalidRequestError` if a column is missing or has another type.
    """
    location = Address.parse(address)
    alone = location.name.endswith(".parquet")
    store = open_store(location.parent if alone else location, storage_options)
    try:
        files = [location.name] if alone else _files(store)
        batches = [path for batch in _batches(store, files) for path in _below(batch, roots)]
    finally:
        store.close()
    return tree_of(pc.unique(pa.chunked_array(batches, pa.string())), EntryKind.FILE)


def _files(store: Store) -> list[str]:
    """Returns the Parquet files of a folder, or of the newest version of a Delta table."""
    if next(store.list_from(LOG_DIRECTORY), None) is None:
        tree = pa.concat_tables([TREE.empty_table(), *store.list_tree()])
        plain = pc.and_(
            pc.equal(tree["kind"], int(EntryKind.FILE)),
            pc.match_substring_regex(tree["path"], r"^([^._][^/]*/)*[^._][^/]*\.parquet$"),
        )
        return sorted(tree["path"].filter(plain).to_pylist())
    snapshot = Table(store).snapshot()
    files = snapshot.live_files()
    mode = column_mapping_mode(snapshot.protocol, snapshot.metadata.configuration)
    if files["dv"].null_count < files.num_rows or mode != "none":
        raise InvalidRequestError(
            "the inventory is a Delta table with deletion vectors or column mapping",
            table=store.root,
            remedy="give one without, or Parquet files",
        )
    return [decode_log_path(path) for path in files["path"].to_pylist()]


def _below(batch: pa.Table, roots: Sequence[str]) -> Iterator[pa.StringArray]:
    files = pc.invert(pc.fill_null(batch["isDir"], False))
    for chunk in batch["path"].filter(files).drop_null().chunks:
        absolute = pc.match_substring_regex(chunk, ABSOLUTE)
        yield chunk.filter(pc.invert(absolute))
        for root in roots:
            yield below_root(chunk.filter(absolute), root=root).drop_null()


def _batches(store: Store, files: Sequence[str]) -> Iterator[pa.Table]:
    for name in files:
        try:
            with store.open(name) as source:
                # No reads in Arrow's I/O threads, as in `table.data.parquet_input`.
                parquet = pq.ParquetFile(source, pre_buffer=False)
                present = set(parquet.schema_arrow.names)
                missing = [column for column in COLUMNS if column not in present]
                if missing:
                    raise InvalidRequestError(
                        f"the inventory has no column {missing[0]}",
                        file=name,
                        remedy=f"give {', '.join(COLUMNS)}",
                    )
                for batch in parquet.iter_batches(columns=["path", "isDir"], use_threads=False):
                    table = pa.Table.from_batches([batch])
                    yield table.cast(pa.schema([(n, COLUMNS[n]) for n in table.column_names]))
        except (FileNotFoundError, pa.ArrowException) as error:
            raise StorageError(
                f"the inventory cannot be read ({' '.join(str(error).split())})", file=name
            ) from None
