"""Which files of a table's folder a vacuum may look at, and what kind of file each is.

No text of the protocol says what vacuum does; the rules are those of Delta Spark, or stricter. They
go by paths alone, relative to the root and literal, in columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.arrays import booleans, to_bools

CHANGE_DATA = "_change_data"
"""The folder of change data files, in the root."""

_LOG = r"(?i)(^|/)_delta_log(/|$)"
_NESTED_LOG = r"(?i)/_delta_log(/|$)"
_VECTOR = r"(^|/)deletion_vector_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin$"
_DATA = r"(?i)\.parquet$"
_CHECKSUM = r"(^|/)\.[^/]+\.crc$"
_HIDDEN_NAME = r"(^|/)[._][^/]*$"
_HIDDEN_SEGMENT = r"(^|/)[._]"

Mask = npt.NDArray[np.bool_]


class Reason(IntEnum):
    """Why a file may go."""

    EXPIRED = 0
    """It was removed from the table longer ago than the retention."""
    UNREFERENCED = 1
    """A data file that no version and no tombstone refers to."""
    DELETION_VECTOR = 2
    """A file of deletion vectors that nothing refers to."""
    CHANGE_DATA = 3
    """A change data file."""
    CHECKSUM = 4
    """Hadoop's checksum of a file that goes."""
    FOREIGN = 5
    """No file of Delta's by its name; goes only where that was asked for."""

    @property
    def label(self) -> str:
        """The reason as plans and reports call it."""
        return _LABELS[self]


_LABELS = {
    Reason.EXPIRED: "expired-tombstone",
    Reason.UNREFERENCED: "unreferenced",
    Reason.DELETION_VECTOR: "deletion-vector",
    Reason.CHANGE_DATA: "change-data",
    Reason.CHECKSUM: "hadoop-checksum",
    Reason.FOREIGN: "foreign",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRules:
    """Which names a vacuum does not look at."""

    partition_columns: tuple[str, ...]
    """Logical and physical names: a folder `_name=value` of one of them is not hidden."""
    iceberg: bool
    """Whether the folder `metadata` belongs to Iceberg."""

    def is_hidden_directory(self, path: str) -> bool:
        """Whether nothing below a directory is looked at."""
        return bool(self.hidden(pa.array([f"{path}/x"]))[0])

    def hidden(self, paths: pa.Array) -> Mask:
        """The files of which any segment begins with `_` or `.`, at any depth.

        Partition folders and the root's `_change_data` are excepted.
        """
        suspect = pc.match_substring_regex(paths, self._suspects())
        hidden = to_bools(suspect)
        if not hidden.any():
            return hidden
        rows = np.flatnonzero(hidden)
        texts = paths.filter(suspect)
        iceberg = self._iceberg(texts)
        bare = pc.replace_substring_regex(texts, rf"^{CHANGE_DATA}/", "")
        if self.partition_columns:
            names = "|".join(re.escape(name) for name in self.partition_columns)
            bare = pc.replace_substring_regex(bare, rf"(^|/)(?:{names})=", r"\1x=")
        still = pc.or_(
            pc.match_substring_regex(bare, _HIDDEN_SEGMENT),
            pc.match_substring_regex(texts, _HIDDEN_NAME),
        )
        hidden[rows] = to_bools(pc.or_(still, iceberg))
        return hidden

    def nested_log(self, paths: pa.Array) -> str | None:
        """The first log of another table, in a place that a vacuum would look at."""
        suspects = paths.filter(pc.match_substring_regex(paths, _NESTED_LOG))
        if not len(suspects):
            return None
        tables = pc.replace_substring_regex(suspects, rf"{_NESTED_LOG}.*", "")
        # The first one counts: what is deeper in a log is part of that log.
        visible = suspects.filter(booleans(~self.hidden(_with_name(tables))))
        return visible[0].as_py() if len(visible) else None

    def _suspects(self) -> str:
        return rf"{_HIDDEN_SEGMENT}|(^|/)metadata/" if self.iceberg else _HIDDEN_SEGMENT

    def _iceberg(self, texts: pa.Array) -> pa.Array:
        if not self.iceberg:
            return pa.repeat(pa.scalar(False), len(texts))
        return pc.match_substring_regex(texts, "(^|/)metadata/")


def in_a_log(paths: pa.Array) -> Mask:
    """The paths that lead into a `_delta_log`, in any case of letters."""
    return to_bools(pc.match_substring_regex(paths, _LOG))


def reasons(paths: pa.Array, *, expired: pa.Array) -> npt.NDArray[np.uint8]:
    """The `Reason` for which each file to which nothing refers may go.

    `expired` tells for each whether a tombstone has named it.
    """
    found = np.full(len(paths), Reason.FOREIGN, np.uint8)
    found[to_bools(pc.match_substring_regex(paths, _DATA))] = Reason.UNREFERENCED
    found[to_bools(pc.match_substring_regex(paths, _VECTOR))] = Reason.DELETION_VECTOR
    found[to_bools(expired) & (found != Reason.DELETION_VECTOR)] = Reason.EXPIRED
    found[to_bools(pc.starts_with(paths, f"{CHANGE_DATA}/"))] = Reason.CHANGE_DATA
    return found


def checksums_of(paths: pa.Array, owners: pa.Array) -> Mask:
    """Hadoop's checksums among the paths whose files are among the owners."""
    found = to_bools(pc.match_substring_regex(paths, _CHECKSUM))
    rows = np.flatnonzero(found)
    files = checksum_owners(paths.filter(booleans(found)))
    found[rows] = to_bools(pc.is_in(files, value_set=owners))
    return found


def checksum_owners(paths: pa.Array) -> pa.Array:
    """The paths, and in place of Hadoop's checksums the files that they belong to."""
    return pc.replace_substring_regex(paths, r"(^|/)\.([^/]+)\.crc$", r"\1\2")


def _with_name(directories: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(directories, "x", "/")
