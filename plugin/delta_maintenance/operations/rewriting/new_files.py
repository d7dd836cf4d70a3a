"""The form of new files: their size, their row groups and their bloom filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.models import NewFileOptions, Reader, RewriteOptions
from delta_maintenance.protocol.statistics.clustering import named_columns
from delta_maintenance.table.data.data_file_writer import filterable_paths, writes_bloom_filters
from delta_maintenance.table.read.snapshot import Snapshot

LARGE_GROUP_BYTES = 256 << 20
"""The size in memory at which a row group is written if the options determine its rows."""
_SMALLEST, _LARGEST = 128 << 20, 1 << 30
_SMALL_TABLE, _LARGE_TABLE, _HUGE_TABLE = 10 << 30, 2_560 << 30, 10 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    """The form of files that suits a reader."""

    target_bytes: int | None = None
    row_group_rows: int | None = None


_PROFILES: Mapping[Reader, _Profile] = {
    # According to Microsoft's page on the maintenance of tables with several readers.
    "spark": _Profile(row_group_rows=1 << 20),
    "sql-endpoint": _Profile(target_bytes=400_000_000, row_group_rows=2_000_000),
    "direct-lake": _Profile(target_bytes=1 << 30, row_group_rows=8_000_000),
}


def contract_for(snapshot: Snapshot, options: RewriteOptions, total_bytes: int) -> Contract:
    """Returns how new files are written: as the table requires, and as the options ask.

    `total_bytes` is the size of the table. Raises the errors of `Contract.of`, `RefusedError` if
    new files cannot have the statistics of a clustering column, and `InvalidRequestError` or
    `RefusedError` if a column cannot have a bloom filter.
    """
    asked = options if isinstance(options, NewFileOptions) else NewFileOptions()
    profile = _Profile() if asked.reader is None else _PROFILES[asked.reader]
    target = asked.target_bytes or profile.target_bytes
    rows = asked.row_group_rows or profile.row_group_rows
    contract = Contract.of(
        snapshot, target_bytes=target or target_size(snapshot, total_bytes), proof=options.proof
    )
    problem = contract.broken_by(snapshot)
    if problem is not None:
        raise RefusedError(problem, remedy="choose other columns with set-clustering --by")
    spec = contract.spec
    if asked.bloom:
        filters = _filtered(snapshot, contract, asked.bloom)
        files = replace(spec.files, bloom_filters=filters)
        spec = replace(spec, files=files, required_filters=filters)
    if rows is not None:
        files = replace(spec.files, group_rows=rows, group_bytes=LARGE_GROUP_BYTES)
        # Copied row groups would keep their rows.
        spec = replace(spec, files=files, copied_group_bytes=None)
    return replace(contract, spec=spec)


def target_size(snapshot: Snapshot, total_bytes: int) -> int:
    """Returns the size of new files in bytes: `delta.targetFileSize`, or a default by the size of
    the table, its `total_bytes`.

    The default is 128 MiB below 10 GiB, 256 MiB up to 2.5 TiB, then linearly up to 1 GiB at 10 TiB.
    """
    table_size = snapshot.properties.target_file_size
    if table_size is not None:
        return table_size
    if total_bytes < _SMALL_TABLE:
        return _SMALLEST
    share = (total_bytes - _LARGE_TABLE) / (_HUGE_TABLE - _LARGE_TABLE)
    return int(2 * _SMALLEST + min(max(share, 0.0), 1.0) * (_LARGEST - 2 * _SMALLEST))


def _filtered(snapshot: Snapshot, contract: Contract, names: Sequence[str]) -> frozenset[str]:
    """Returns the paths of the leaves that get bloom filters."""
    columns = named_columns(names, snapshot.protocol, snapshot.metadata)
    possible = filterable_paths(contract.spec.files.layout.schema)
    partitioned = {name.lower() for name in snapshot.metadata.partition_columns}
    for column in columns:
        if column.name.lower() in partitioned:
            refusal = "it is a partition column, whose values are in the log"
        elif ".".join(column.path) not in possible:
            refusal = f"values of its type ({column.type}) have none"
        else:
            continue
        raise InvalidRequestError(
            f"{column.name} cannot have a bloom filter: {refusal}",
            remedy="leave out the column, or name one of numbers, times, strings or binaries",
        )
    if not writes_bloom_filters():
        raise RefusedError(
            f"PyArrow {pa.__version__} writes no bloom filters",
            remedy="install PyArrow 25 or newer, or leave out the columns with bloom filters",
        )
    return frozenset(".".join(column.path) for column in columns)
