"""The symlink manifests of a table, which Athena, Presto and Redshift Spectrum read instead of its
log: for each partition, a file with the addresses of its live data files, not encoded.

The protocol does not define them. Delta Spark writes those of the touched partitions after each
commit to a table with `delta.compatibility.symlinkFormatManifest.enabled`, and all on `GENERATE`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import new_id
from delta_maintenance.errors import RefusedError, table_text
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.actions.paths import below_root, decode_paths, locations_below
from delta_maintenance.protocol.commit.build import BuiltCommit
from delta_maintenance.protocol.data_files.names import hive_folder
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.schema.types import column_mapping_mode
from delta_maintenance.scratch import scratch_folder, scratch_writes
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import EntryKind, directories_of
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.log_file import read_text
from delta_maintenance.table.read.snapshot import Snapshot

MANIFESTS = "_symlink_format_manifest"
"""The folder of the manifests in the root."""
PURGE = "run purge, which applies the deletion vectors and writes the manifests"
ENTRIES = pa.schema([("folder", pa.string()), ("file", pa.large_binary())])
"""Files by the folder of their manifest below `MANIFESTS`: locations relative to the root, whole
addresses for files outside of it."""
LIVE_ENTRIES = pa.schema([*ENTRIES, ("is_outside", pa.bool_()), ("has_vector", pa.bool_())])
"""Live files as entries of manifests."""

_logger = logging.getLogger(__name__)
_NAME = "manifest"
_FIELDS = {"add": ("path", "deletionVector", "partitionValues"), "remove": ()}
_ROUNDS = 5
_THREADS = 8
_LONGEST_LINE = 4096


def update_manifests(snapshot: Snapshot, commit: BuiltCommit, metadata: Metadata) -> None:
    """Writes the manifests of the partitions that a landed commit touched, as Delta Spark does.

    `snapshot` is the version that the commit was based on, `metadata` that of its own. A failure is
    logged: the commit has landed, and `fsck` reports manifests that are not up to date.
    """
    enabled = TableProperties.from_configuration(metadata.configuration).symlink_manifests
    begins = enabled and not snapshot.properties.symlink_manifests
    actions = commit.actions
    if not enabled or not (begins or actions.adds.num_rows or actions.removes.num_rows):
        return
    try:
        columns = snapshot.log.physical_partition_columns
        folders = None if begins else _touched_folders(columns, actions.adds, actions.removes)
        current = advance(snapshot).snapshot
        for _ in range(_ROUNDS):
            if current.log.physical_partition_columns != columns:
                folders = None
            write_manifests(current, folders)
            # Another writer may have written these manifests for a later version just before.
            newest = advance(current).snapshot
            if newest.version == current.version or not newest.properties.symlink_manifests:
                break
            current = newest
    except Exception as error:
        # Nothing may make a landed commit look lost, or its files are deleted.
        _logger.warning(
            "version %d of %s is committed, but not all of its symlink manifests are written, so "
            "their readers see older files, which vacuum keeps: %s; run fsck, which names them",
            commit.version,
            table_text(snapshot.table),
            error,
        )


def write_manifests(snapshot: Snapshot, folders: pa.Array | None = None) -> int:
    """Writes the manifests in some folders, and deletes those of folders without live files.

    Without `folders`, and if there is no manifest yet, all of them. Returns their number. In memory
    are a scan of the log, one batch of lines, and the names of the folders; the other lines are in
    temporary files. Raises `RefusedError` for a table with column mapping, and for live files with
    deletion vectors, which a reader of manifests would ignore; then the manifests of the other
    partitions are written.
    """
    store = snapshot.log.store
    require_readable(snapshot)
    sample = _first_line(store, folders)
    if sample is None:
        folders = None
    root = _root_in(sample, store)
    with scratch_folder() as scratch:
        texts, unwritable = snapshot.avoiding_damage(
            lambda sound: _spill(_live_batches(sound, folders), scratch, root=root)
        )
        if not snapshot.metadata.partition_columns:
            texts.setdefault("", _empty_file(scratch))
        needed = pa.array(list(texts), pa.string())
        for folder in unwritable:
            del texts[folder]

        def write(folder: str) -> None:
            with texts[folder].open("rb") as text:
                store.put_from(manifest_path(folder), text)

        for _ in in_parallel(write, texts, threads=_THREADS):
            pass
    if folders is None:
        paths = stored_manifests(store)
        folders = _folders_of(paths.filter(pc.match_substring_regex(paths, f"(^|/){_NAME}$")))
    _delete_manifests(store, folders.filter(pc.invert(pc.is_in(folders, value_set=needed))))
    if unwritable:
        raise RefusedError(
            f"symlink manifests of {len(unwritable)} partitions are not written, because readers "
            "of manifests ignore the deletion vectors of their files",
            file=manifest_path(min(unwritable)),
            remedy=PURGE,
        )
    return len(texts)


def require_readable(snapshot: Snapshot) -> None:
    """Raises `RefusedError` if readers of manifests cannot read the data files of the table."""
    if column_mapping_mode(snapshot.protocol, snapshot.metadata.configuration) != "none":
        raise RefusedError(
            "readers of symlink manifests cannot read a table with column mapping",
            remedy="drop the feature columnMapping with drop-feature, and run fsck --repair",
        )


def live_entries(snapshot: Snapshot) -> pa.Table:
    """Returns the live files of a version (`LIVE_ENTRIES`)."""
    return snapshot.avoiding_damage(
        lambda sound: pa.concat_tables([LIVE_ENTRIES.empty_table(), *_live_batches(sound)])
    )


def _live_batches(snapshot: Snapshot, folders: pa.Array | None = None) -> Iterator[pa.Table]:
    """Yields the live files (`LIVE_ENTRIES`) in these folders or in all."""
    columns, roots = snapshot.log.physical_partition_columns, snapshot.log.store.addresses
    for batch in snapshot.log.scan(fields=_FIELDS):
        adds = batch.adds.append_column("folder", _partition_folders(batch.adds, columns))
        if folders is not None:
            adds = adds.filter(pc.is_in(adds["folder"], value_set=folders))
        if adds.num_rows:
            yield _entries(adds, roots)


def stored_entries(store: Store) -> pa.Table:
    """Returns the lines of all manifests (`ENTRIES`), also repeated ones."""
    tables = [ENTRIES.empty_table()]
    for path, files in read_manifests(store):
        folder = pa.repeat(_folders_of(pa.array([path]))[0], len(files))
        tables.append(pa.table([folder, files.cast(pa.large_binary())], schema=ENTRIES))
    return pa.concat_tables(tables)


def read_manifests(store: Store) -> Iterator[tuple[str, pa.StringArray]]:
    """Yields the path and the files of each manifest, as in `ENTRIES`.

    Raises `FileNotFoundError` if one was deleted after the listing.
    """

    def read(path: str) -> tuple[str, pa.StringArray]:
        text = read_text(store, path, may_be_empty=True).decode(errors="replace")
        lines = pa.array(filter(None, text.replace("\r\n", "\n").split("\n")), pa.string())
        below = [below_root(lines, root=root, is_literal=True) for root in store.addresses]
        return path, pc.coalesce(*below, _as_hadoop(lines))

    return in_parallel(read, stored_manifests(store).to_pylist(), threads=_THREADS)


def stored_manifests(store: Store) -> pa.StringArray:
    """Returns the paths of all files that a reader takes for a manifest."""
    names_by_batch = [_manifests_in(batch) for batch in store.list_tree(MANIFESTS)]
    return pa.concat_arrays([pa.array([], pa.string()), *names_by_batch])


def _manifests_in(listed: pa.Table) -> pa.StringArray:
    paths = listed["path"].filter(pc.equal(listed["kind"], int(EntryKind.FILE))).combine_chunks()
    # Hadoop marks each folder on S3 by an object whose key ends with a slash.
    return paths.filter(pc.invert(pc.match_substring_regex(paths, "(^|/)([._][^/]*)?$")))


def _folders_of(paths: pa.StringArray) -> pa.StringArray:
    return pc.utf8_slice_codeunits(directories_of(paths), len(MANIFESTS) + 1)


def manifest_path(folder: str) -> str:
    """Returns the path of the manifest of a partition, relative to the root of the table."""
    return "/".join(filter(None, (MANIFESTS, folder, _NAME)))


def _touched_folders(columns: Sequence[str], *actions: pa.Table) -> pa.Array | None:
    """Returns the folders of the partitions of file actions; None if some state no partition."""
    file_tables = [files.select(["partitionValues"]) for files in actions if files.num_rows]
    if columns and any(files["partitionValues"].null_count for files in file_tables):
        return None
    return pc.unique(
        pa.chunked_array([_partition_folders(files, columns) for files in file_tables])
    )


def _partition_folders(files: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Returns the folder of the partition of each file. Each partition is named once."""
    if not columns or not files.num_rows:
        return pa.repeat("", files.num_rows)
    codes = np.zeros(files.num_rows, np.int64)
    values = []
    for name in columns:
        texts = pc.map_lookup(files["partitionValues"], query_key=name, occurrence="first")
        distinct = texts.combine_chunks().dictionary_encode(null_encoding="encode")
        values.append(distinct)
        _, codes = np.unique(
            codes * len(distinct.dictionary) + distinct.indices.to_numpy(), return_inverse=True
        )
    _, first_rows = np.unique(codes, return_index=True)
    rows = zip(*(column.take(pa.array(first_rows)).to_pylist() for column in values), strict=True)
    names = [hive_folder(dict(zip(columns, row, strict=True)), columns) for row in rows]
    return pa.array(names, pa.string()).take(pa.array(codes))


def _entries(adds: pa.Table, roots: Sequence[str]) -> pa.Table:
    paths = pa.concat_arrays([pa.array([], pa.string()), *adds["path"].chunks])
    locations, outside = locations_below(paths, roots=roots)
    files = pc.if_else(outside, decode_paths(paths), locations)
    vectors = (
        pc.is_valid(adds["deletionVector"])
        if "deletionVector" in adds.column_names
        else pa.repeat(pa.scalar(False), adds.num_rows)
    )
    files = _as_hadoop(files).cast(pa.large_binary())
    return pa.table([adds["folder"], files, outside, vectors], schema=LIVE_ENTRIES)


def _as_hadoop(files: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(files, "^file:/+", "file:/")


def _first_line(store: Store, folders: pa.Array | None) -> str | None:
    """Returns the first line of some manifest, which may be empty; None if there is none."""

    def read(path: str) -> str:
        return store.read_head(path, _LONGEST_LINE).decode(errors="replace").partition("\n")[0]

    if folders is not None and len(folders):
        with suppress(FileNotFoundError):
            return read(manifest_path(folders[0].as_py()))
    for batch in store.list_tree(MANIFESTS):
        for path in _manifests_in(batch).to_pylist():
            with suppress(FileNotFoundError):
                return read(path)
    return None


def _root_in(line: str | None, store: Store) -> str:
    """Returns the address of the root with a slash: that in the line of a manifest if it is one of
    the table's, because clients know the same store by different schemes.
    """
    for root in store.addresses if line else ():
        below = below_root(pa.array([line]), root=root, is_literal=True)[0].as_py()
        if line and below:
            return line.removesuffix(below)
    address = store.address.absolute()
    return f"file:{address.path}/" if address.is_local else f"{address}/"


def _spill(
    batches: Iterable[pa.Table], scratch: Path, *, root: str
) -> tuple[dict[str, Path], set[str]]:
    """Writes the lines of each folder to a file of its own.

    Returns the files by folder, and the folders with deletion vectors.
    """
    end, separator = pa.array([b"\n", b""], pa.large_binary())
    texts: dict[str, Path] = {}
    unwritable: set[str] = set()
    for batch in batches:
        unwritable.update(pc.unique(batch["folder"].filter(batch["has_vector"])).to_pylist())
        batch = batch.sort_by("folder")
        starts = pc.if_else(batch["is_outside"], b"", root.encode()).cast(pa.large_binary())
        lines = pc.binary_join_element_wise(starts, batch["file"], end, separator)
        _, offsets, data = lines.combine_chunks().buffers()
        ends, start = np.frombuffer(offsets, np.int64), 0
        runs = pc.run_end_encode(batch["folder"].combine_chunks())
        for folder, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if folder not in texts:
                texts[folder] = _empty_file(scratch)
            with scratch_writes(texts[folder]), texts[folder].open("ab") as text:
                text.write(memoryview(data)[ends[start] : ends[stop]])
            start = stop
    return texts, unwritable


def _empty_file(scratch: Path) -> Path:
    path = scratch / new_id()
    with scratch_writes(path):
        path.touch()
    return path


def _delete_manifests(store: Store, folders: pa.Array) -> None:
    names = folders.to_pylist()
    checksums = [manifest_path(name).removesuffix(_NAME) + f".{_NAME}.crc" for name in names]
    failed = store.delete_many([*map(manifest_path, names), *checksums])
    for error in failed.values():
        raise error
    list(store.remove_empty_directories([f"{MANIFESTS}/{name}" for name in names if name]))
