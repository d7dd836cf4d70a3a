"""The version checksum file, which summarises the state of one version.

Implements "Version Checksum File Schema", "File Size Histogram Schema", "Deleted Record Counts
Histogram Schema" and "State Validation". A checksum proves nothing: if it differs from the log, the
log is right. All fields are optional, because older writers omitted most of them; absent fields are
not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata, Protocol, Txn
from delta_maintenance.protocol.columns import Hashes, hash_texts

_Action = TypeVar("_Action", Txn, DomainMetadata)
Counts = npt.NDArray[np.int64]

_MIB = 1 << 20
USUAL_BOUNDARIES: tuple[int, ...] = (
    0,
    *(8192 << power for power in range(10)),
    *range(8 * _MIB, 41 * _MIB, 4 * _MIB),
    *range(48 * _MIB, 121 * _MIB, 8 * _MIB),
    *range(124 * _MIB, 145 * _MIB, 4 * _MIB),
    *range(160 * _MIB, 577 * _MIB, 16 * _MIB),
    *range(640 * _MIB, 1409 * _MIB, 64 * _MIB),
    *range(1536 * _MIB, 2049 * _MIB, 128 * _MIB),
    *range(2304 * _MIB, 4097 * _MIB, 256 * _MIB),
    *((8192 * _MIB) << power for power in range(6)),
)
"""Lower bounds of the bins in Delta Spark's file size histograms, in bytes."""

MOST_TXNS = 100
MOST_DOMAINS = 10
MOST_FILES = 50
"""Delta Spark omits longer lists, to keep the file small."""
MOST_INDEXED_COLUMNS = 32
"""Delta Spark omits the list of files of a table with statistics of more columns."""

_TOMBSTONES = "delta-maintenance.numTombstones"
_DELETED_BOUNDARIES = (0, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizeHistogram:
    """The number and the bytes of live files by size."""

    boundaries: tuple[int, ...]
    """Lower bounds of the bins in bytes. Each bin ends where the next one starts."""
    file_counts: tuple[int, ...]
    total_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.boundaries), len(self.file_counts), len(self.total_bytes)}
        rising = all(low < high for low, high in pairwise(self.boundaries))
        if len(lengths) != 1 or self.boundaries[:1] != (0,) or not rising:
            raise CorruptTableError(
                "the bins of a file size histogram do not rise from 0 or lack counts"
            )

    @classmethod
    def of(cls, sizes: Counts, boundaries: tuple[int, ...] = USUAL_BOUNDARIES) -> FileSizeHistogram:
        """The histogram of the sizes of all live files, in bytes."""
        counts = np.zeros(len(boundaries), np.int64)
        totals = np.zeros(len(boundaries), np.int64)
        bins = np.searchsorted(np.array(boundaries, np.int64), sizes, side="right") - 1
        np.add.at(counts, bins, 1)
        np.add.at(totals, bins, sizes)
        return cls(
            boundaries=boundaries,
            file_counts=tuple(counts.tolist()),
            total_bytes=tuple(totals.tolist()),
        )

    def changed(self, *, removed: Counts, added: Counts) -> FileSizeHistogram:
        """The histogram after files with these sizes, in bytes, were removed and added."""
        minus, plus = (FileSizeHistogram.of(sizes, self.boundaries) for sizes in (removed, added))
        return FileSizeHistogram(
            boundaries=self.boundaries,
            file_counts=_change_bins(self.file_counts, minus.file_counts, plus.file_counts),
            total_bytes=_change_bins(self.total_bytes, minus.total_bytes, plus.total_bytes),
        )


def deleted_record_counts(cardinalities: Counts) -> tuple[int, ...]:
    """The number of files in the ten bins of rows marked by their deletion vectors."""
    counts = np.zeros(len(_DELETED_BOUNDARIES), np.int64)
    np.add.at(counts, np.searchsorted(_DELETED_BOUNDARIES, cardinalities, side="right") - 1, 1)
    return tuple(counts.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChecksum:
    """The values of a checksum file, or those computed from the log; None for absent values."""

    txn_id: str | None = None
    """The transaction ID in the `commitInfo` of the commit."""
    table_size: int | None = None
    """The size of all live files in bytes."""
    num_files: int | None = None
    num_deleted_records: int | None = None
    num_deletion_vectors: int | None = None
    num_metadata: int | None = 1
    num_protocol: int | None = 1
    in_commit_timestamp: int | None = None
    """Milliseconds since 1970-01-01 UTC."""
    txns: tuple[Txn, ...] | None = None
    domains: tuple[DomainMetadata, ...] | None = None
    """Without removed domains."""
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    file_sizes: FileSizeHistogram | None = None
    deleted_record_counts: tuple[int, ...] | None = None
    all_files: tuple[Json, ...] | None = None
    """The objects of all live `add` actions."""
    extra: Json = field(default_factory=dict)
    """Fields that the protocol does not define."""


def parse_checksum(data: bytes) -> VersionChecksum:
    """The contents of a checksum file.

    Also reads the histogram under its name in older files. Raises `CorruptTableError` if the file
    is not a JSON object with fields of the right types.
    """
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CorruptTableError("the checksum file is not a JSON object")
    sizes = value.get("fileSizeHistogram") or value.get("histogramOpt")
    deleted = _part(value, "deletedRecordCountsHistogramOpt", Mapping)
    metadata, protocol = (_part(value, name, Mapping) for name in ("metadata", "protocol"))
    files = _part(value, "allFiles", list)
    if files is not None and not all(isinstance(file, Mapping) for file in files):
        raise CorruptTableError(
            "allFiles of the checksum file contains a value that is not an object"
        )
    return VersionChecksum(
        txn_id=_part(value, "txnId", str),
        table_size=_count(value, "tableSizeBytes"),
        num_files=_count(value, "numFiles"),
        num_deleted_records=_count(value, "numDeletedRecordsOpt"),
        num_deletion_vectors=_count(value, "numDeletionVectorsOpt"),
        num_metadata=_count(value, "numMetadata"),
        num_protocol=_count(value, "numProtocol"),
        in_commit_timestamp=_count(value, "inCommitTimestampOpt"),
        txns=_actions(value, "setTransactions", Txn.from_json),
        domains=_actions(value, "domainMetadata", DomainMetadata.from_json),
        metadata=None if metadata is None else Metadata.from_json(metadata),
        protocol=None if protocol is None else Protocol.from_json(protocol),
        file_sizes=_histogram(sizes),
        deleted_record_counts=None if deleted is None else _deleted_bins(deleted),
        all_files=None if files is None else tuple(files),
        extra={name: item for name, item in value.items() if name not in _NAMES},
    )


def render_checksum(checksum: VersionChecksum) -> bytes:
    """The bytes of the file: one line, with the fields in the order of Delta Spark."""
    sizes, deleted = checksum.file_sizes, checksum.deleted_record_counts
    fields: dict[str, Any] = {
        "txnId": checksum.txn_id,
        "tableSizeBytes": checksum.table_size,
        "numFiles": checksum.num_files,
        "numDeletedRecordsOpt": checksum.num_deleted_records,
        "numDeletionVectorsOpt": checksum.num_deletion_vectors,
        "numMetadata": checksum.num_metadata,
        "numProtocol": checksum.num_protocol,
        "inCommitTimestampOpt": checksum.in_commit_timestamp,
        "setTransactions": _objects(checksum.txns),
        "domainMetadata": _objects(checksum.domains),
        "metadata": None if checksum.metadata is None else checksum.metadata.to_json(),
        "protocol": None if checksum.protocol is None else checksum.protocol.to_json(),
        "fileSizeHistogram": None
        if sizes is None
        else {
            "sortedBinBoundaries": sizes.boundaries,
            "fileCounts": sizes.file_counts,
            "totalBytes": sizes.total_bytes,
        },
        "deletedRecordCountsHistogramOpt": None
        if deleted is None
        else {"deletedRecordCounts": deleted},
        "allFiles": checksum.all_files,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    present |= checksum.extra
    text = json.dumps(present, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def with_tombstones(checksum: VersionChecksum, number: int) -> VersionChecksum:
    """The checksum with the number of tombstones, in a field of this library that others ignore."""
    return replace(checksum, extra={**checksum.extra, _TOMBSTONES: number})


def stated_tombstones(checksum: VersionChecksum) -> int | None:
    """The number that `with_tombstones` added; None if there is none."""
    number: Any = checksum.extra.get(_TOMBSTONES, -1)
    return number if _is_long(number) and number >= 0 else None


def is_consistent(checksum: VersionChecksum) -> bool:
    """Whether the numbers that a checksum states about its files do not contradict each other.

    A consistent checksum may still be wrong; only the log can tell.
    """
    numbers = (
        checksum.num_files,
        checksum.table_size,
        checksum.num_deletion_vectors,
        checksum.num_deleted_records,
    )
    if any(number < 0 for number in numbers if number is not None):
        return False
    if (checksum.num_metadata, checksum.num_protocol) != (1, 1):
        return False
    if checksum.num_files is None or checksum.table_size is None:
        return False
    if checksum.protocol is None or checksum.metadata is None:
        return False
    sizes, bins = checksum.file_sizes, checksum.deleted_record_counts
    if sizes is not None and (sum(sizes.file_counts), sum(sizes.total_bytes)) != (
        checksum.num_files,
        checksum.table_size,
    ):
        return False
    if sizes is not None and not _within_bins(sizes):
        return False
    if bins is not None and (min(bins) < 0 or sum(bins) != checksum.num_files):
        return False
    if bins is not None and not _within_deleted_bins(bins, checksum):
        return False
    files = checksum.all_files
    return files is None or len(files) == checksum.num_files


def _within_deleted_bins(bins: tuple[int, ...], checksum: VersionChecksum) -> bool:
    """Whether the deletion vectors and their rows are those that the bins can have."""
    rows, vectors = checksum.num_deleted_records, checksum.num_deletion_vectors
    if vectors is not None and vectors < sum(bins[1:]):
        return False
    ends = (*_DELETED_BOUNDARIES[1:], 2**63)
    lowest = sum(start * count for start, count in zip(_DELETED_BOUNDARIES, bins, strict=True))
    highest = sum((end - 1) * count for end, count in zip(ends, bins, strict=True))
    return rows is None or lowest <= rows <= highest


def _within_bins(sizes: FileSizeHistogram) -> bool:
    """Whether the bytes of each bin are those that its number of files can have."""
    ends = (*sizes.boundaries[1:], 2**63)
    bins = zip(sizes.boundaries, ends, sizes.file_counts, sizes.total_bytes, strict=True)
    return all(
        count >= 0 and start * count <= size <= max(end - 1, 0) * count
        for start, end, count, size in bins
    )


def differences(stated: VersionChecksum, computed: VersionChecksum) -> Iterator[str]:
    """The differences between a checksum and the log, one clause each.

    Values that one side lacks are not compared, and neither are `txn_id`, `all_files` and `extra`.
    """
    for name, label in _COMPARED.items():
        in_file, in_log = getattr(stated, name), getattr(computed, name)
        if in_file is not None and in_log is not None and in_file != in_log:
            yield f"{label} is {in_file}, but {in_log} in the log"
    for name, label in _COMPARED_WHOLE.items():
        in_file, in_log = getattr(stated, name), getattr(computed, name)
        if (
            in_file is not None
            and in_log is not None
            and _comparable(in_file) != _comparable(in_log)
        ):
            yield f"{label} differs from the log"


_COMPARED = {
    "table_size": "tableSizeBytes",
    "num_files": "numFiles",
    "num_deleted_records": "numDeletedRecordsOpt",
    "num_deletion_vectors": "numDeletionVectorsOpt",
    "num_metadata": "numMetadata",
    "num_protocol": "numProtocol",
    "in_commit_timestamp": "inCommitTimestampOpt",
}
_COMPARED_WHOLE = {
    "protocol": "protocol",
    "metadata": "metadata",
    "txns": "setTransactions",
    "domains": "domainMetadata",
    "file_sizes": "fileSizeHistogram",
    "deleted_record_counts": "deletedRecordCountsHistogramOpt",
}
_NAMES = frozenset(
    {"txnId", *_COMPARED.values(), *_COMPARED_WHOLE.values(), "histogramOpt", "allFiles"}
)


def _comparable(value: Any) -> object:
    """The value without order where the protocol defines none."""
    if isinstance(value, Protocol):
        features = (value.reader_features, value.writer_features)
        lists = [None if names is None else frozenset(names) for names in features]
        return (value.min_reader_version, value.min_writer_version, *lists)
    if isinstance(value, tuple):
        return {_key(item): item for item in value} if value and _key(value[0]) else value
    return value


def _key(item: Any) -> str | None:
    if isinstance(item, Txn):
        return item.app_id
    return item.domain if isinstance(item, DomainMetadata) else None


def _change_bins(
    before: Iterable[int], minus: Iterable[int], plus: Iterable[int]
) -> tuple[int, ...]:
    return tuple(b - m + p for b, m, p in zip(before, minus, plus, strict=True))


def _objects(actions: tuple[Txn, ...] | tuple[DomainMetadata, ...] | None) -> list[Json] | None:
    return None if actions is None else [action.to_json() for action in actions]


def _actions(
    value: Json, name: str, parse: Callable[[Json], _Action]
) -> tuple[_Action, ...] | None:
    items = _part(value, name, list)
    if items is None:
        return None
    if not all(isinstance(item, Mapping) for item in items):
        raise CorruptTableError(
            f"{name} of the checksum file contains a value that is not an object"
        )
    return tuple(parse(item) for item in items)


def _histogram(value: Any) -> FileSizeHistogram | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise CorruptTableError("the file size histogram of the checksum file is not an object")
    return FileSizeHistogram(
        boundaries=_counts(value, "sortedBinBoundaries"),
        file_counts=_counts(value, "fileCounts"),
        total_bytes=_counts(value, "totalBytes"),
    )


def _deleted_bins(value: Json) -> tuple[int, ...]:
    counts = _counts(value, "deletedRecordCounts")
    if len(counts) != len(_DELETED_BOUNDARIES):
        raise CorruptTableError(
            f"deletedRecordCounts of the checksum file has {len(counts)} bins instead of "
            f"{len(_DELETED_BOUNDARIES)}"
        )
    return counts


def _counts(value: Json, name: str) -> tuple[int, ...]:
    items = value.get(name)
    if not isinstance(items, list) or not all(_is_long(item) for item in items):
        raise CorruptTableError(f"{name} of the checksum file is not a list of numbers")
    return tuple(items)


def _count(value: Json, name: str) -> int | None:
    number = value.get(name)
    if number is not None and not _is_long(number):
        raise CorruptTableError(f"{name} of the checksum file is not a number: {number!r}")
    return number


def _part(value: Json, name: str, kind: type[Any]) -> Any:
    value_read = value.get(name)
    if value_read is not None and not isinstance(value_read, kind):
        raise CorruptTableError(f"{name} of the checksum file has the wrong type: {value_read!r}")
    return value_read


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


@dataclass(slots=True)
class Tally:
    """The sums over a set of file actions; equal sets have equal sums."""

    adds: int = 0
    tombstones: int = 0
    size: int = 0
    """The size of the live data files in bytes."""
    keys: int = 0
    """The sum of the hashes of all logical file keys, modulo 2^64; tombstones are weighted
    differently.
    """

    @classmethod
    def of(cls, adds: pa.Table, tombstones: pa.Table) -> Self:
        """Returns the tally of one batch."""
        tally = cls()
        tally.include(adds, tombstones)
        return tally

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Self:
        """Returns the sum of tallies."""
        tally = cls()
        for addend in tallies:
            tally.add(addend)
        return tally

    @property
    def actions(self) -> int:
        """The number of adds and tombstones."""
        return self.adds + self.tombstones

    def include(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Adds a batch. `add_hashes` are the hashes of its adds' keys, if already computed."""
        self.adds += adds.num_rows
        self.tombstones += tombstones.num_rows
        if adds.num_rows and "size" in adds.column_names:
            self.size += pc.sum(adds["size"]).as_py() or 0
        for batch, weight, hashes in ((adds, 1, add_hashes), (tombstones, 3, None)):
            total = _sum(hashes) if hashes is not None else _sum_of_keys(batch)
            self.keys = (self.keys + weight * total) % 2**64

    def add(self, addend: Tally) -> None:
        """Adds another tally."""
        self.adds += addend.adds
        self.tombstones += addend.tombstones
        self.size += addend.size
        self.keys = (self.keys + addend.keys) % 2**64


def _sum_of_keys(batch: pa.Table) -> int:
    if not batch.num_rows:
        return 0
    return sum(_sum(hash_texts(chunk)) for chunk in logical_file_keys(batch).chunks)


def _sum(hashes: Hashes) -> int:
    return int(np.add.reduce(hashes, dtype=np.uint64))
