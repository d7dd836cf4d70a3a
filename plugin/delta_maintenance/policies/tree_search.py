"""Finding tables in a store, by their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.storage import Store
from delta_maintenance.storage.core.listing import EntryKind
from delta_maintenance.storage.core.streaming_pool import StreamingPool
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

PARALLEL = 16
"""The number of folders that are listed at once."""
_IN_LOG = rf"^(?:[^._/][^/]*/)*{LOG_DIRECTORY}/"
"""Neither the folder nor one above it is hidden."""


def tables_in(
    store: Store, *, leads_on: Callable[[str], bool] = lambda folder: True, parallel: int = PARALLEL
) -> Iterator[str]:
    """Yields the folders that contain a log, relative to the store's root; empty for the root.

    Lists level by level, and enters neither tables, links, folders whose names begin with `.` or
    `_`, nor those that `leads_on` refuses.
    """
    first = store.list_level()
    if first is None:
        # Such stores can only list everything.
        yield from _outermost(store.list_tree())
        return
    with StreamingPool(parallel) as pool:
        level, listed = [""], [first]
        while level:
            deeper: list[str] = []
            for path, entries in zip(level, listed, strict=True):
                folders = [folder for folder in _folders(entries) if folder != path]
                log = f"{path}/{LOG_DIRECTORY}" if path else LOG_DIRECTORY
                if log in folders:
                    yield path
                else:
                    deeper.extend(
                        folder for folder in folders if not _is_hidden(folder) and leads_on(folder)
                    )
            level = sorted(deeper)
            listed = list(pool.map(store.list_level, level))


def tables_in_first(store: Store, *, batches: int) -> Iterator[str]:
    """Yields the folders that contain a log according to the first batches of a listing of
    everything, for a search that must end soon.
    """
    return _outermost(islice(store.list_tree(), batches))


def _is_hidden(folder: str) -> bool:
    return folder.rpartition("/")[2].startswith((".", "_"))


def _folders(entries: pa.Table) -> list[str]:
    chosen = entries.filter(pc.equal(entries["kind"], int(EntryKind.DIRECTORY)))
    paths: list[str] = chosen["path"].to_pylist()
    return paths


def _outermost(batches: Iterable[pa.Table]) -> Iterator[str]:
    """Derives the folders of tables that are in no other table from listed files."""
    found: set[str] = set()
    for batch in batches:
        logs = batch.filter(pc.match_substring_regex(batch["path"], _IN_LOG))
        tables = pc.replace_substring_regex(logs["path"], rf"(^|/){LOG_DIRECTORY}/.*$", "")
        found.update(pc.unique(tables).to_pylist())
    outermost: str | None = None
    for path in sorted(found, key=lambda path: path.split("/") if path else []):
        nested = outermost is not None and (not outermost or path.startswith(f"{outermost}/"))
        if not nested:
            outermost = path
            yield path
