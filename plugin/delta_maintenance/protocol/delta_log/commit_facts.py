"""What adjacent commits prove about the files of their last version, whatever came before them.

Implements "Action Reconciliation" for a part of a log. A file whose newest action in these commits
is an add is live after them, and one whose newest action is a remove is not. Where writers follow
different rules, nothing is proved: for a file that is named by two spellings, for a remove without
the deletion vector of its file, and for two actions in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.protocol.commit.staged import locations_of, logical_locations
from delta_maintenance.protocol.ndjson.parse import ParsedFileActions

FACT_FIELDS = {action: ("path", "deletionVector") for action in ("add", "remove")}
"""The fields of file actions that the facts need."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """The files that some adjacent commits prove to be live or removed after the last of them."""

    root: str
    live: pa.Table
    """Adds of live files: no later commit names their location."""
    removed: pa.Table
    """Removes of logical files that are not live under the path as written."""
    named: pa.BinaryArray
    """The locations of all files that the commits name."""
    is_exact: bool
    """Whether every file that the commits leave live is in `live`."""

    @classmethod
    def of(cls, parsed: ParsedFileActions, *, root: str) -> Self:
        """Derives the facts from the actions of commits, of which the newest one comes first."""
        adds, removes = parsed.adds, parsed.removes
        age = np.concatenate([parsed.add_source, parsed.remove_source])
        is_add = np.arange(len(age)) < adds.num_rows
        keys = _codes([*logical_file_keys(adds).chunks, *logical_file_keys(removes).chunks])
        locations = [locations_of(batch, root=root) for batch in (adds, removes)]
        places = _codes(locations)
        is_newest = age == _least(keys, age)
        added, dropped = (_counts(keys, is_newest & rows) for rows in (is_add, ~is_add))
        stays = is_newest & is_add & (dropped == 0)
        is_last = age == _least(places, age)
        live = stays & is_last & (_counts(places, is_last & is_add) == 1)
        gone = is_newest & ~is_add & (added == 0)
        left_live = len(np.unique(keys[is_newest & is_add]))
        return cls(
            root=root,
            live=adds.filter(booleans(live[: adds.num_rows])),
            removed=removes.filter(booleans(gone[adds.num_rows :])),
            named=pa.concat_arrays(locations),
            is_exact=int(live.sum()) == left_live,
        )

    def differences(
        self, files: pa.Table, *, before: pa.Table | None = None, is_complete: bool = False
    ) -> Iterator[str]:
        """Yields how the live files of a checkpoint of the last version contradict the commits, one
        clause each.

        `before` are the live files of an older checkpoint after which no commit is missing.
        `is_complete` says that the commits begin with version 0.
        """
        keys, there = logical_file_keys(files), logical_locations(files, root=self.root)
        if pc.count_distinct(keys).as_py() < len(keys):
            yield "has a file twice"
        expected = [self.live.select(["path"])]
        known_locations = [logical_locations(self.live, root=self.root)]
        if before is not None:
            unnamed = pc.invert(pc.is_in(locations_of(before, root=self.root), self.named))
            before = before.filter(unnamed)
            expected.append(before.select(["path"]))
            known_locations.append(logical_locations(before, root=self.root))
        locations = pa.concat_arrays(known_locations)
        lost = pa.concat_tables(expected).filter(pc.invert(pc.is_in(locations, there)))
        has_other_vector = pc.is_in(lost["path"], pc.unique(files["path"]))
        yield from _name_files("has another deletion vector for", lost.filter(has_other_vector))
        yield from _name_files("lacks live files:", lost.filter(pc.invert(has_other_vector)))
        removed = pc.is_in(keys, pc.unique(logical_file_keys(self.removed)))
        yield from _name_files("has files that a commit removed:", files.filter(removed))
        if self.is_exact and (is_complete or before is not None):
            unknown = pc.invert(pc.is_in(there, locations))
            yield from _name_files("has files that no commit added:", files.filter(unknown))


def _name_files(problem: str, files: pa.Table) -> Iterator[str]:
    if files.num_rows:
        suffix = f" and {files.num_rows - 1} others" if files.num_rows > 1 else ""
        yield f"{problem} {files['path'][0].as_py()}{suffix}"


def _codes(texts: Sequence[pa.Array]) -> _Ints:
    """Returns a number for each text, the same for equal ones."""
    joined = pa.concat_arrays([text.cast(pa.binary()) for text in texts] or [pa.nulls(0)])
    return np.asarray(joined.dictionary_encode().indices.to_numpy(), np.int64)


def _least(codes: _Ints, values: _Ints) -> _Ints:
    """Returns, for each row, the least value of the rows with its code."""
    lowest = np.full(_length(codes), np.iinfo(np.int64).max)
    np.minimum.at(lowest, codes, values)
    return lowest[codes]


def _counts(codes: _Ints, rows: npt.NDArray[np.bool_]) -> _Ints:
    """Returns, for each row, how many of the given rows have its code."""
    return np.bincount(codes[rows], minlength=_length(codes))[codes]


def _length(codes: _Ints) -> int:
    return int(codes.max(initial=-1)) + 1
