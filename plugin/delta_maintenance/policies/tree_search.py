"""Finding tables in a store by their logs, and near an address that is not that of a table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.storage import Store, open_store
from delta_maintenance.storage.core.listing import EntryKind
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

PARALLEL = 16
"""The number of folders that are listed at once."""
OF_VERSION = rf"{LOG_DIRECTORY}/(?P<version>[0-9]{{20}})\.(?:json$|checkpoint\.)"
"""A commit or a checkpoint."""
_IN_LOG = rf"^(?:[^._/][^/]*/)*{OF_VERSION}"
"""Neither the folder nor one above it is hidden."""
_LEVELS_ABOVE = 4
_FOLDERS_BELOW = 200
"""The number of folders that are searched on this machine."""
_PAGES_BELOW = 10
"""The number of pages of a listing that are searched elsewhere."""
_SHOWN = 5


def tables_in(
    store: Store, *, leads_on: Callable[[str], bool] = lambda folder: True, parallel: int = PARALLEL
) -> Iterator[str]:
    """Yields the folders that contain a log, relative to the store's root; empty for the root.

    Lists level by level, and enters neither tables, links, folders whose names begin with `.` or
    `_`, nor those that `leads_on` refuses. A folder whose log contains no version hides nothing: it
    is yielded unless there are tables below it.
    """
    first_level = store.list_level()
    if first_level is None:
        # Such stores can only list everything.
        yield from _outermost(store.list_tree())
        return
    tables: set[str] = set()
    empty: set[str] = set()
    with StreamingPool(parallel) as pool:
        level, listed = [""], [first_level]
        while level:
            deeper: list[str] = []
            parents: dict[str, list[str]] = {}
            for path, entries in zip(level, listed, strict=True):
                folders = [folder for folder in _folders(entries) if folder != path]
                visible = [folder for folder in folders if not _is_hidden(folder)]
                if _log_of(path) not in folders:
                    deeper.extend(filter(leads_on, visible))
                elif visible:
                    parents[path] = visible
                else:
                    tables.add(path)
                    yield path
            has_versions = pool.map(lambda path: _has_versions(store, path), parents)
            for (path, visible), is_table in zip(parents.items(), has_versions, strict=True):
                (tables if is_table else empty).add(path)
                if is_table:
                    yield path
                else:
                    deeper.extend(filter(leads_on, visible))
            level = sorted(deeper)
            listed = list(pool.map(store.list_level, level))
    for path in sorted(empty):
        if not any(_is_below(other_path, path) for other_path in (tables | empty) - {path}):
            yield path


def tables_in_first(store: Store, *, batches: int) -> Iterator[str]:
    """Yields the folders that contain a log according to the first batches of a listing of
    everything, for a search that must end soon.
    """
    return _outermost(islice(store.list_tree(), batches))


def _log_of(path: str) -> str:
    return f"{path}/{LOG_DIRECTORY}" if path else LOG_DIRECTORY


def _has_versions(store: Store, path: str) -> bool:
    """Returns whether the log of a folder has a file of a version. Its names are the first ones."""
    names = (status.path for status in store.list_from(_log_of(path)))
    return any(re.search(OF_VERSION, name) for name in names)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


def _is_hidden(folder: str) -> bool:
    return folder.rpartition("/")[2].startswith((".", "_"))


def _folders(entries: pa.Table) -> list[str]:
    chosen = entries.filter(pc.equal(entries["kind"], int(EntryKind.DIRECTORY)))
    paths: list[str] = chosen["path"].to_pylist()
    return paths


def _outermost(batches: Iterable[pa.Table]) -> Iterator[str]:
    """Derives the folders of tables that are in no other table from listed files."""
    folders: set[str] = set()
    for batch in batches:
        logs = batch.filter(pc.match_substring_regex(batch["path"], _IN_LOG))
        tables = pc.replace_substring_regex(logs["path"], rf"(^|/){LOG_DIRECTORY}/.*$", "")
        folders.update(pc.unique(tables).to_pylist())
    outermost: str | None = None
    for path in sorted(folders, key=lambda path: path.split("/") if path else []):
        if outermost is None or not _is_below(path, outermost):
            outermost = path
            yield path


def remedy_near(address: str, storage_options: Mapping[str, str]) -> str | None:
    """Returns what to do if the address is that of a folder within a table, or above tables.

    None if neither is found, or if the store cannot be searched.
    """
    try:
        absolute = Address.parse(address).absolute()
        return _within(absolute, storage_options) or _above(address, storage_options)
    except DeltaMaintenanceError:
        # The error that led here stays the one that is shown.
        return None


def holds_nothing(address: str, storage_options: Mapping[str, str]) -> bool:
    """Whether nothing is at an address: no folder on this machine, nothing below it elsewhere.

    False if the store cannot tell.
    """
    parsed = Address.parse(address)
    if parsed.kind is StoreKind.LOCAL:
        return not os.path.exists(parsed.path)
    try:
        batches = open_store(address, storage_options).list_tree()
        return not any(batch.num_rows for batch in batches)
    except DeltaMaintenanceError:
        return False


def _within(address: Address, storage_options: Mapping[str, str]) -> str | None:
    for _ in range(_LEVELS_ABOVE):
        if not address.path.strip("/"):
            return None
        address = address.parent
        store = open_store(str(address), storage_options)
        if next(store.list_from(LOG_DIRECTORY), None) is not None:
            return f"give the address of the table that this folder belongs to, {address}"
    return None


def _above(address: str, storage_options: Mapping[str, str]) -> str | None:
    store = open_store(address, storage_options)
    if store.is_near:
        budget = iter(range(_FOLDERS_BELOW))
        tables = tables_in(store, leads_on=lambda folder: next(budget, None) is not None)
    else:
        tables = tables_in_first(store, batches=_PAGES_BELOW)
    names = [*islice(filter(None, tables), _SHOWN + 1)]
    if not names:
        return None
    rest = " and others" if len(names) > _SHOWN else ""
    return f"give the address of a table; the folder contains {', '.join(names[:_SHOWN])}{rest}"
