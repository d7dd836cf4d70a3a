"""The version checksum file: the state of one version in short, to be compared with the log.

Implements "Version Checksum File Schema", "File Size Histogram Schema", "Deleted Record Counts
Histogram Schema" and "State Validation". A checksum proves nothing about the log: where the two
differ, the log is the table. All fields are read as optional, since older writers left most of them
out; what is absent is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata, Protocol, Txn

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
"""Where the bins of Delta Spark's file size histograms start, in bytes."""

_DELETED_BOUNDARIES = (0, 1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizeHistogram:
    """How many live files there are of which size."""

    boundaries: tuple[int, ...]
    """Bytes at which the bins start; each ends where the next starts, the last one never."""
    file_counts: tuple[int, ...]
    total_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.boundaries), len(self.file_counts), len(self.total_bytes)}
        rising = all(one < two for one, two in pairwise(self.boundaries))
        if len(lengths) != 1 or self.boundaries[:1] != (0,) or not rising:
            raise CorruptTableError(
                "the bins of a file size histogram do not rise from 0, or are not all counted"
            )

    @classmethod
    def of(cls, sizes: Counts, boundaries: tuple[int, ...] = USUAL_BOUNDARIES) -> FileSizeHistogram:
        """Of the sizes of all live files, in bytes."""
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

    def changed(self, *, gone: Counts, come: Counts) -> FileSizeHistogram:
        """The histogram after files of some sizes went and others came."""
        minus, plus = (FileSizeHistogram.of(sizes, self.boundaries) for sizes in (gone, come))
        return FileSizeHistogram(
            boundaries=self.boundaries,
            file_counts=_changed(self.file_counts, minus.file_counts, plus.file_counts),
            total_bytes=_changed(self.total_bytes, minus.total_bytes, plus.total_bytes),
        )


def deleted_record_counts(cardinalities: Counts) -> tuple[int, ...]:
    """The ten bins of files by how many of their rows deletion vectors mark, 0 without a vector."""
    counts = np.zeros(len(_DELETED_BOUNDARIES), np.int64)
    np.add.at(counts, np.searchsorted(_DELETED_BOUNDARIES, cardinalities, side="right") - 1, 1)
    return tuple(counts.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChecksum:
    """What a checksum file says, or what the log comes to; None is what is not said."""

    txn_id: str | None = None
    """That of the commit, from its `commitInfo`."""
    table_size: int | None = None
    """Bytes of all live files."""
    num_files: int | None = None
    num_deleted_records: int | None = None
    num_deletion_vectors: int | None = None
    num_metadata: int | None = 1
    num_protocol: int | None = 1
    in_commit_timestamp: int | None = None
    """Milliseconds since 1970-01-01 UTC."""
    txns: tuple[Txn, ...] | None = None
    domains: tuple[DomainMetadata, ...] | None = None
    """Removed ones left out."""
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    file_sizes: FileSizeHistogram | None = None
    deleted_record_counts: tuple[int, ...] | None = None
    all_files: tuple[Json, ...] | None = None
    """The objects of all live `add` actions."""
    extra: Json = field(default_factory=dict)
    """Fields that no text of the protocol knows."""


def parse_checksum(data: bytes) -> VersionChecksum:
    """What a checksum file says. `CorruptTableError` where it is not one JSON object of its kind.

    Reads the histogram under the name that older writers gave it, too.
    """
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CorruptTableError("the checksum file is no JSON object")
    sizes = value.get("fileSizeHistogram") or value.get("histogramOpt")
    deleted = _part(value, "deletedRecordCountsHistogramOpt", Mapping)
    metadata, protocol = (_part(value, name, Mapping) for name in ("metadata", "protocol"))
    files = _part(value, "allFiles", list)
    if files is not None and not all(isinstance(file, Mapping) for file in files):
        raise CorruptTableError("the checksum's allFiles holds something that is no object")
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
    """The bytes of the file: one line, in the order of fields that Delta Spark writes."""
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
    said = {name: value for name, value in fields.items() if value is not None}
    said |= checksum.extra
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def differences(stated: VersionChecksum, computed: VersionChecksum) -> Iterator[str]:
    """What a checksum says otherwise than the log, one clause each.

    What either of the two does not say is passed over, `txn_id`, `all_files` and `extra` always.
    """
    for name, label in _COMPARED.items():
        said, found = getattr(stated, name), getattr(computed, name)
        if said is not None and found is not None and said != found:
            yield f"{label} is {said} where the log comes to {found}"
    for name, label in _COMPARED_WHOLE.items():
        said, found = getattr(stated, name), getattr(computed, name)
        if said is not None and found is not None and _comparable(said) != _comparable(found):
            yield f"{label} is not that of the log"


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
    {
        "txnId",
        *_COMPARED.values(),
        *_COMPARED_WHOLE.values(),
        "histogramOpt",
        "allFiles",
    }
)


def _comparable(value: Any) -> object:
    """Without an order where the protocol gives none, and without what only some writers repeat."""
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


def _changed(before: Iterable[int], minus: Iterable[int], plus: Iterable[int]) -> tuple[int, ...]:
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
        raise CorruptTableError(f"the checksum's {name} holds something that is no object")
    return tuple(parse(item) for item in items)


def _histogram(value: Any) -> FileSizeHistogram | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise CorruptTableError("the checksum's file size histogram is no object")
    return FileSizeHistogram(
        boundaries=_counts(value, "sortedBinBoundaries"),
        file_counts=_counts(value, "fileCounts"),
        total_bytes=_counts(value, "totalBytes"),
    )


def _deleted_bins(value: Json) -> tuple[int, ...]:
    counts = _counts(value, "deletedRecordCounts")
    if len(counts) != len(_DELETED_BOUNDARIES):
        raise CorruptTableError(
            f"deletedRecordCounts has {len(counts)} bins instead of {len(_DELETED_BOUNDARIES)}"
        )
    return counts


def _counts(value: Json, name: str) -> tuple[int, ...]:
    items = value.get(name)
    if not isinstance(items, list) or not all(_is_long(item) for item in items):
        raise CorruptTableError(f"the checksum's {name} is no list of numbers")
    return tuple(items)


def _count(value: Json, name: str) -> int | None:
    number = value.get(name)
    if number is not None and not _is_long(number):
        raise CorruptTableError(f"the checksum's {name} is no number: {number!r}")
    return number


def _part(value: Json, name: str, kind: type[Any]) -> Any:
    part = value.get(name)
    if part is not None and not isinstance(part, kind):
        raise CorruptTableError(f"the checksum's {name} has another form: {part!r}")
    return part


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
