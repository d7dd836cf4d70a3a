"""Opens the files that a version needs: footers of data files, and all deletion vectors.

Implements requirements of "Deletion Vector Format", "Deletion Vector File Storage Format" and
"Per-file Statistics". The number of files opened at a time is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.statistics import StatisticsCheck
from delta_maintenance.protocol.actions.deletion_vectors import (
    MEMORY_PER_BYTE,
    MOST_BYTES,
    STORED_INLINE,
    DeletionVectorDescriptor,
)
from delta_maintenance.protocol.actions.paths import as_uris, file_locations
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.data.deleted_rows import WHOLE_FILE, VectorFiles
from delta_maintenance.table.data.footers import MissingColumnError, count_rows
from delta_maintenance.table.progress import Progress

_TOGETHER = 4096
"""The number of files between two reports of progress."""
_PARALLEL_READS = 16
_SMALL_VECTOR = 1 << 20
"""A vector of more bytes is read while no other such vector is."""
VECTORS_MEMORY = (
    _PARALLEL_READS * (WHOLE_FILE + _SMALL_VECTOR * MEMORY_PER_BYTE) + MOST_BYTES * MEMORY_PER_BYTE
)
"""The maximum memory for reading deletion vectors in bytes."""


_UNREAD: Mapping[str, type[DeltaMaintenanceError]] = {
    "unreadable-data-file": CorruptTableError,
    "unsupported-data-file": UnsupportedFeatureError,
    "widened-without-feature": RefusedError,
    "missing-not-null-column": MissingColumnError,
}


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
    layout: DataFileLayout | None = None,
    statistics: StatisticsCheck | None = None,
    progress: Progress | None = None,
) -> None:
    """Compares the number of rows of existing data files with their statistics.

    With `layout`, the types of their columns are compared with those of the table. With
    `statistics`, so are bounds and null counts; `present` then has the columns `stats` and
    `writer`.
    """
    for first_row in range(0, present.num_rows, _TOGETHER):
        files = present.slice(first_row, _TOGETHER)
        locations = as_uris(files["location"].combine_chunks())
        comparing = None if statistics is None else statistics.of(store, files, locations)
        row_counts = count_rows(
            store,
            locations,
            layout=layout,
            read_footer=None if comparing is None else comparing.read_footer,
        )
        counts = pa.chunked_array([row_counts.counts])
        unreadable = pc.is_null(row_counts.counts)
        names = locations.filter(unreadable).to_pylist()
        problems = [
            text.removeprefix(f"{name}: ")
            for name, text in zip(names, row_counts.problems, strict=True)
        ]
        for kind, error_kind in _UNREAD.items():
            chosen = pa.array([error is error_kind for error in row_counts.errors], pa.bool_())
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
        if comparing is not None:
            text = comparing.with_writers(text, differ)
            comparing.add_findings(row_counts.footers, findings, version=version)
        findings.add_files("row-count-differs", text, paths=paths, version=version)
        if progress is not None:
            progress("footers", min(first_row + _TOGETHER, present.num_rows), present.num_rows)


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
    alone = Lock()
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        checked = pool.map(lambda marked: list(_problems(store, marked, alone)), by_file.values())
        for done, vector_check in enumerate(checked, 1):
            for kind, path, problem in vector_check:
                findings.add(kind, problem, version=version, path=path)
            if progress is not None:
                progress("deletion vector files", done, len(by_file))


_Marked = tuple[str, Mapping[str, Any], int | None]
"""A data file, the descriptor of its vector, and its number of physical rows."""


def _problems(
    store: Store, marked: Sequence[_Marked], alone: Lock
) -> Iterator[tuple[str, str, str]]:
    """The problems of the vectors in one file: the kind of the finding, the data file, the text."""
    files, location = VectorFiles(store), partial(_location, store)
    for path, stated, count in marked:
        try:
            vector = DeletionVectorDescriptor.from_json(stated)
            with alone if vector.size_in_bytes > _SMALL_VECTOR else nullcontext():
                rows = files.load(vector, location)
                last = rows.max() if rows else None
                del rows
        except RefusedError as error:
            yield "unsupported-data-file", path, error.problem
        except (CorruptTableError, UnsupportedFeatureError) as error:
            if not isinstance(error.__context__, FileNotFoundError):
                yield "damaged-deletion-vector", path, error.problem
        else:
            if last is not None and count is not None and last >= count:
                problem = f"its deletion vector marks row {last} of {count}, counted from 0"
                yield "damaged-deletion-vector", path, problem


def _location(store: Store, path: str) -> str:
    try:
        # An absolute address is already decoded; an address below the root becomes relative.
        location = file_locations(as_uris(pa.array([path]), absolute=True), root=store.root)
        return check_path(location[0].as_py().decode())
    except InvalidRequestError as error:
        raise FileNotFoundError(path) from error
