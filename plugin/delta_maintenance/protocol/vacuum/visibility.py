"""The files in a table's folder that a vacuum considers, and the kind of each file.

The protocol does not define vacuum. The rules are those of Delta Spark, or stricter. They depend
only on paths, relative to the root and not encoded, and work on columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.paths import has_odd_segment
from delta_maintenance.protocol.columns.arrays import booleans, to_bools

CHANGE_DATA = "_change_data"
"""The folder of change data files in the root."""

_LOG = r"(?i)(^|/)_delta_log(/|$)"
_NESTED_LOG = r"(?i)/_delta_log(/|$)"
_VECTOR = r"(^|/)deletion_vector_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin$"
_DATA = r"(?i)\.parquet$"
_CHECKSUM = r"(^|/)\.[^/]+\.crc$"
_HIDDEN_NAME = r"(^|/)[._][^/]*$"
_HIDDEN_SEGMENT = r"(^|/)[._]"

Mask = npt.NDArray[np.bool_]


class Reason(IntEnum):
    """The reason for deleting a file."""

    EXPIRED = 0
    """It was removed from the table, and its retention has ended."""
    UNREFERENCED = 1
    """A data file that no version and no tombstone refers to."""
    DELETION_VECTOR = 2
    """A deletion vector file that nothing refers to."""
    CHANGE_DATA = 3
    """A change data file."""
    CHECKSUM = 4
    """Hadoop's checksum of a file that is deleted."""
    FOREIGN = 5
    """Not a Delta file, judging by its name; deleted only on request."""

    @property
    def label(self) -> str:
        """The name of the reason in plans and reports."""
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
    """Rules for the names that a vacuum ignores."""

    partition_columns: tuple[str, ...]
    """Logical and physical names. A folder `_name=value` of such a column is not hidden."""
    iceberg: bool
    """Whether the folder `metadata` belongs to Iceberg."""

    def is_hidden_directory(self, path: str) -> bool:
        """Whether everything below a directory is ignored."""
        return bool(self.hidden(pa.array([f"{path}/x"]))[0])

    def hidden(self, paths: pa.Array) -> Mask:
        """Marks files with a path segment that starts with `_` or `.`, at any depth.

        Partition folders and `_change_data` in the root are exceptions.
        """
        if not self.iceberg and not has_odd_segment(paths):
            return np.zeros(len(paths), np.bool_)
        suspects = pc.match_substring_regex(paths, self._suspects())
        hidden = to_bools(suspects)
        if not hidden.any():
            return hidden
        rows = np.flatnonzero(hidden)
        texts = paths.filter(suspects)
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
        """The first path to the log of another table that is not hidden, or None."""
        if not has_odd_segment(paths):
            return None
        suspects = paths.filter(pc.match_substring_regex(paths, _NESTED_LOG))
        if not len(suspects):
            return None
        tables = pc.replace_substring_regex(suspects, rf"{_NESTED_LOG}.*", "")
        # Only the outermost log matters; anything below it is part of that log.
        visible = suspects.filter(booleans(~self.hidden(_with_name(tables))))
        return visible[0].as_py() if len(visible) else None

    def _suspects(self) -> str:
        return rf"{_HIDDEN_SEGMENT}|(^|/)metadata/" if self.iceberg else _HIDDEN_SEGMENT

    def _iceberg(self, texts: pa.Array) -> pa.Array:
        if not self.iceberg:
            return pa.repeat(pa.scalar(False), len(texts))
        return pc.match_substring_regex(texts, "(^|/)metadata/")


def in_a_log(paths: pa.Array) -> Mask:
    """Marks the paths with a segment `_delta_log`, ignoring case."""
    return to_bools(pc.match_substring_regex(paths, _LOG))


def reasons(paths: pa.Array, *, expired: pa.Array | None) -> npt.NDArray[np.uint8]:
    """The `Reason` for which each unreferenced file may be deleted.

    `expired` marks the files that an expired tombstone names, if these are known.
    """
    found = np.full(len(paths), Reason.FOREIGN, np.uint8)
    found[to_bools(pc.match_substring_regex(paths, _DATA))] = Reason.UNREFERENCED
    found[to_bools(pc.match_substring_regex(paths, _VECTOR))] = Reason.DELETION_VECTOR
    if expired is not None:
        found[to_bools(expired) & (found != Reason.DELETION_VECTOR)] = Reason.EXPIRED
    found[to_bools(pc.starts_with(paths, f"{CHANGE_DATA}/"))] = Reason.CHANGE_DATA
    return found


def checksums_of(paths: pa.Array, owners: pa.Array) -> Mask:
    """Marks the Hadoop checksums whose files are among the owners."""
    found = to_bools(pc.match_substring_regex(paths, _CHECKSUM))
    rows = np.flatnonzero(found)
    files = checksum_owners(paths.filter(booleans(found)))
    found[rows] = to_bools(pc.is_in(files, value_set=owners))
    return found


def checksums_for(paths: pa.Array) -> pa.Array:
    """The paths of the Hadoop checksums of files."""
    return pc.replace_substring_regex(paths, r"([^/]+)$", r".\1.crc")


def checksum_owners(paths: pa.Array) -> pa.Array:
    """The paths, with Hadoop checksums replaced by the files that they belong to."""
    return pc.replace_substring_regex(paths, r"(^|/)\.([^/]+)\.crc$", r"\1\2")


def _with_name(directories: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(directories, "x", "/")
