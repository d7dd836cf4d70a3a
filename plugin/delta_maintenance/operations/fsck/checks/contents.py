"""Opens the files that a version needs: footers of data files, and all deletion vectors.

Implements requirements of "Deletion Vector Format", "Deletion Vector File Storage Format" and
"Per-file Statistics". The number of files opened at a time is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_INLINE,
    DeletionVectorDescriptor,
    load,
)
from delta_maintenance.protocol.actions.paths import as_uris, locations
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.data.row_counts import count_rows
from delta_maintenance.table.progress import Progress

_TOGETHER = 4096
"""The number of files between two reports of progress."""
_PARALLEL_READS = 16


def with_vectors(adds: pa.Table) -> pa.Table:
    """Returns the files with a deletion vector."""
    return adds.filter(pc.is_valid(adds["deletionVector"]))


def inline_vectors(adds: pa.Table) -> pa.Table:
    """Returns the files whose deletion vector is in the log, so that no file has to be opened."""
    stored = pc.struct_field(adds["deletionVector"], "storageType")
    return adds.filter(pc.fill_null(pc.equal(stored, STORED_INLINE), False))


def check_footers(
    store: Store,
    present: pa.Table,
    findings: Findings,
    *,
    version: int,
    progress: Progress | None = None,
) -> None:
    """Compares the number of rows of existing data files with their statistics."""
    for first in range(0, present.num_rows, _TOGETHER):
        files = present.slice(first, _TOGETHER)
        places = as_uris(files["place"].combine_chunks())
        found = count_rows(store, places)
        counts = pa.chunked_array([found.counts])
        unreadable = pc.is_null(found.counts)
        names = places.filter(unreadable).to_pylist()
        problems = [
            text.removeprefix(f"{name}: ") for name, text in zip(names, found.problems, strict=True)
        ]
        for kind, wanted in (("unreadable-data-file", False), ("unsupported-data-file", True)):
            chosen = pa.array([each is wanted for each in found.unsupported], pa.bool_())
            findings.add_files(
                kind,
                pa.chunked_array([pa.array(problems, pa.string()).filter(chosen)]),
                paths=files["path"].filter(unreadable).filter(chosen),
                version=version,
            )
        differ = pc.fill_null(pc.not_equal(counts, files["num_records"]), False)
        text = pc.binary_join_element_wise(
            "the file has",
            counts.filter(differ).cast(pa.string()),
            "rows, but its statistics state",
            files["num_records"].filter(differ).cast(pa.string()),
            " ",
        )
        paths = files["path"].filter(differ)
        findings.add_files("row-count-differs", text, paths=paths, version=version)
        if progress is not None:
            progress("footers", min(first + _TOGETHER, present.num_rows), present.num_rows)


def check_vectors(
    store: Store,
    adds: pa.Table,
    findings: Findings,
    *,
    version: int,
    progress: Progress | None = None,
) -> None:
    """Decodes every deletion vector of live files: frame, checksum, cardinality, highest row.

    A file with several vectors is read once. A missing file is reported by the check of presence.
    """
    rows = with_vectors(adds)
    by_file: defaultdict[str, list[_Marked]] = defaultdict(list)
    columns = ("path", "deletionVector", "num_records")
    for path, vector, count in zip(*(rows[name].to_pylist() for name in columns), strict=True):
        by_file[f"{vector['storageType']}{vector['pathOrInlineDv']}"].append((path, vector, count))
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        checked = pool.map(lambda marked: list(_problems(store, marked)), by_file.values())
        for done, found in enumerate(checked, 1):
            for path, problem in found:
                findings.add("damaged-deletion-vector", problem, version=version, path=path)
            if progress is not None:
                progress("deletion vector files", done, len(by_file))


_Marked = tuple[str, Mapping[str, Any], int | None]
"""A data file, the descriptor of its vector, and its number of physical rows."""


def _problems(store: Store, marked: Sequence[_Marked]) -> Iterator[tuple[str, str]]:
    """The problems of the vectors in one file, by data file."""
    read = _Once(store)
    for path, vector, count in marked:
        try:
            rows = load(DeletionVectorDescriptor.from_json(vector), read)
        except (CorruptTableError, UnsupportedFeatureError) as error:
            if not read.missing:
                yield path, error.problem
            continue
        if rows and count is not None and rows.max() >= count:
            yield path, f"its deletion vector marks row {rows.max()} of {count}, counted from 0"


class _Once:
    """Reads a file below the root, and caches the last one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[str, bytes] | None = None
        self.missing = False

    def __call__(self, path: str) -> bytes:
        if self._last is None or self._last[0] != path:
            self._last = path, self._read(path)
        return self._last[1]

    def _read(self, path: str) -> bytes:
        try:
            # An absolute address is already decoded; an address below the root becomes relative.
            place = locations(as_uris(pa.array([path]), absolute=True), root=self._store.root)
            return self._store.read(check_path(place[0].as_py().decode()))
        except (FileNotFoundError, InvalidRequestError) as error:
            self.missing = True
            raise FileNotFoundError(path) from error
