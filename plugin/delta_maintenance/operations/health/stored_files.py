"""Asks the store for a few files of a table, to find early that files were lost.

An interrupted copy of a table, or a rule of the store that deletes old files, takes files that the
log still names. One request asks for a data file, and one for the file of its deletion vector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import (
    CorruptTableError,
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.fsck import Finding
from delta_maintenance.operations.fsck.findings import KINDS
from delta_maintenance.operations.health.models import FileCheck
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.actions.paths import ABSOLUTE
from delta_maintenance.protocol.delta_log.file_sample import FIELDS, FileSample
from delta_maintenance.storage.core.base import FileStatus, Store
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_MOST_FINDINGS = 10
_Rows = Iterable[Mapping[str, Any]]
"""The `FIELDS` of live files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFile:
    path: str
    """The path of the data file in the log."""
    location: str
    """The name in the store, of the data file or of the file of its deletion vector."""
    size: int | None = None
    """Bytes; None for a deletion vector."""
    is_vector: bool = False


def check_files(
    snapshot: Snapshot, sample: FileSample | None, earlier: FileCheck | None
) -> FileCheck | None:
    """Asks the store for the files of a sample; returns the `earlier` check if there is none.

    Files that the `earlier` check missed are asked for again. A file counts as missing if the
    newest version needs it as well, and the store does not have it on a second request. Raises the
    errors of the store; files that it refuses to describe are a warning.
    """
    doubted_paths = [] if earlier is None else [str(finding.path) for finding in earlier.findings]
    check = earlier
    if sample is not None:
        check = _check(snapshot, sample.files())
        doubted_paths += [str(finding.path) for finding in check.findings]
    if check is None or not doubted_paths:
        return check
    # Another writer may have removed a file meanwhile, and a vacuum have deleted it.
    newest = Table(snapshot.log.store).forward(snapshot)
    return replace(check, findings=_check(newest, _live_rows(newest, doubted_paths)).findings)


def _check(snapshot: Snapshot, rows: _Rows) -> FileCheck:
    store, rows = snapshot.log.store, list(rows)
    stored_files: dict[str, _StoredFile] = {}
    outside = 0
    for row in rows:
        try:
            stored_files |= {file.location: file for file in _stored_files(store, row)}
        except RefusedError:
            outside += 1
    asked = list(stored_files.values())
    threads = 1 if store.is_near else store.parallel_reads
    statuses = in_parallel(partial(_status, store), asked, threads=threads)
    answers = [*zip(asked, statuses, strict=True)]
    refused = [answer for _, answer in answers if isinstance(answer, Exception)]
    findings = [
        Finding(
            kind=kind,
            severity=KINDS[kind].severity,
            version=snapshot.version,
            path=file.path,
            problem=problem,
            remedy=f"run fsck, which finds all such files; {KINDS[kind].remedy}",
        )
        for file, answer in answers
        if not isinstance(answer, Exception)
        for kind, problem in _problems(file, answer)
    ]
    return FileCheck(
        version=snapshot.version,
        asked=len(asked) - len(refused),
        outside=outside,
        findings=tuple(findings[:_MOST_FINDINGS]),
        warnings=tuple(
            f"whether {count_text(len(refused), 'file')} of the table exist is not known: {error}"
            for error in refused[:1]
        ),
    )


def _stored_files(store: Store, row: Mapping[str, Any]) -> Iterator[_StoredFile]:
    """Yields the data file and the file of its deletion vector.

    `RefusedError` for a file outside the table's root.
    """
    path = row["path"]
    yield _StoredFile(path=path, location=location_of(store, path), size=row.get("size"))
    if row.get("deletionVector") is None:
        return
    try:
        vector = DeletionVectorDescriptor.from_json(row["deletionVector"])
        location = vector.relative_path()
    except (CorruptTableError, UnsupportedFeatureError):
        # Operations on the rows, and fsck, report a damaged descriptor.
        return
    if vector.absolute_path() is not None:
        location = location_of(store, vector.path_or_inline_dv)
    if location is not None:
        yield _StoredFile(path=path, location=location, is_vector=True)


def _status(
    store: Store, file: _StoredFile
) -> FileStatus | None | StorageAccessError | RefusedError | InvalidRequestError:
    try:
        status = store.stat(file.location)
        if status is None and not file.is_vector and not re.match(ABSOLUTE, file.path):
            # Some writers do not encode paths.
            status = store.stat(file.path) if file.path != file.location else None
        return status
    except (StorageAccessError, RefusedError, InvalidRequestError) as error:
        # Without the permission to list, S3 answers like this for a missing file, too.
        return error


def _problems(file: _StoredFile, status: FileStatus | None) -> Iterator[tuple[str, str]]:
    """Yields the kind and the problem of a finding, as in fsck."""
    if status is None and file.is_vector:
        problem = f"the file of its deletion vector does not exist: {file.location}"
        yield "missing-deletion-vector", problem
    elif status is None:
        yield "missing-data-file", "the data file does not exist"
    elif file.size is not None and status.size != file.size:
        problem = f"the file has {status.size} bytes, but the log states {file.size}"
        yield "data-file-size", problem


def _live_rows(snapshot: Snapshot, paths: list[str]) -> _Rows:
    """Returns the live files among the paths, in their order."""
    names = pa.array(paths, pa.string())
    parts = snapshot.avoiding_damage(
        lambda sound: [
            batch.adds.filter(pc.is_in(batch.adds["path"], value_set=names)).to_pylist()
            for batch in sound.log.scan(fields={"add": FIELDS, "remove": ()})
        ]
    )
    return sorted((row for rows in parts for row in rows), key=lambda row: paths.index(row["path"]))
