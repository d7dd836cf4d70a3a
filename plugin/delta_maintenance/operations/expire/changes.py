"""The file actions of one commit that removes expired rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from delta_maintenance.operations.expire.survey import live_rows
from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    CDC_TYPES,
    DELETION_VECTOR,
    empty,
)
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.protocol.commit.staged import removes_of
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.protocol.statistics.bounds import Mask, Numbers
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.table.data.bins import RewriteSpec, RewrittenBin
from delta_maintenance.table.read.snapshot import Snapshot


def _none() -> Numbers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Files with expired rows, and the files that take their place."""

    before: pa.Table
    """The complete adds of live files."""
    rows: Numbers
    """The expired live rows of each of them; -1 if the log does not state the number."""
    after: pa.Table = field(default_factory=lambda: empty(ADD_TYPES))
    """Adds with the rows that stay: of the same files with deletion vectors, or of new files."""
    of: Numbers = field(default_factory=_none)
    """For each of these, the row of its source in `before`."""
    rewrites: bool = False
    """Whether they are new files."""
    feed: pa.Table = field(default_factory=lambda: empty(CDC_TYPES))
    """The change data files of the expired rows, if the table needs any."""
    feed_of: Numbers = field(default_factory=_none)
    """For each of these, the row of its source in `before`."""
    new_files: tuple[str, ...] = ()
    """The files that were written for it, or for a change that follows it at once."""

    @property
    def files(self) -> int:
        """The number of files with expired rows."""
        return int(self.before.num_rows)

    @property
    def whole(self) -> Mask:
        """The files without a successor."""
        return ~np.isin(np.arange(self.files), self.of)

    @property
    def size(self) -> Numbers:
        """The size of each file in bytes."""
        return _sizes(self.before)

    @property
    def removes(self) -> pa.Table:
        """The removes of the files."""
        return removes_of(self.before, data_change=True)

    def with_feed(self, bins: Sequence[RewrittenBin]) -> Change:
        """Adds the change data files of each file of `before`."""
        counts = [len(bin_.outputs) for bin_ in bins]
        of = np.repeat(np.arange(len(bins)), counts)
        new_files = tuple(dict.fromkeys((*self.new_files, *names_of(bins))))
        return replace(self, feed=change_actions(bins), feed_of=of, new_files=new_files)

    def without(self, touched: Mask) -> Change:
        """Returns the change of the other files."""
        if not touched.any():
            return self
        number = np.cumsum(~touched) - 1
        kept, told = ~touched[self.of], ~touched[self.feed_of]
        return replace(
            self,
            before=self.before.filter(booleans(~touched)),
            rows=self.rows[~touched],
            after=self.after.filter(booleans(kept)),
            of=number[self.of[kept]].astype(np.int64),
            feed=self.feed.filter(booleans(told)),
            feed_of=number[self.feed_of[told]].astype(np.int64),
        )

    def metrics(self) -> dict[str, str]:
        """Returns `operationMetrics` under the names of Delta Spark's DELETE."""
        marked = 0 if self.rewrites else len(self.of)
        gone = self.whole if marked else np.ones(self.files, np.bool_)
        vectors = _has_vector(self.before)
        found = {
            "numRemovedFiles": int(gone.sum()),
            "numRemovedBytes": int(self.size[gone].sum()),
            "numAddedFiles": len(self.of) - marked,
            "numAddedBytes": int(_sizes(self.after).sum()) if self.rewrites else 0,
            "numDeletionVectorsAdded": marked,
            "numDeletionVectorsRemoved": int(vectors.sum()),
            "numDeletionVectorsUpdated": int(vectors[self.of].sum()) if marked else 0,
            "numAddedChangeFiles": self.feed.num_rows,
        }
        if (self.rows >= 0).all():
            found["numDeletedRows"] = int(self.rows.sum())
        return {name: str(value) for name, value in found.items()}


def names_of(bins: Iterable[RewrittenBin]) -> tuple[str, ...]:
    """Returns the names of the new files of bins."""
    return tuple(output.name for bin_ in bins for output in bin_.outputs)


def whole_files(adds: pa.Table) -> Change:
    """Returns the change that removes files with all of their rows."""
    rows = np.asarray(pc.fill_null(num_records(adds["stats"]), -1), np.int64)
    return Change(before=adds, rows=live_rows(adds, rows))


def with_vectors(
    adds: pa.Table, rows: Numbers, after: pa.Table, vectors: Mapping[int, DeletionVectorDescriptor]
) -> Change:
    """Returns the change that deletes `rows` rows of each file.

    `vectors` are the new deletion vectors by the number of the file, ascending, and `after` the
    adds of these files with their new statistics. Files without one are removed.
    """
    columns = {
        "deletionVector": pa.array(
            [vector.to_json() for vector in vectors.values()], DELETION_VECTOR
        ),
        "dataChange": pa.array([True] * len(vectors), pa.bool_()),
    }
    for name, values in columns.items():
        after = after.set_column(after.schema.get_field_index(name), name, values)
    names = dict.fromkeys(vector.relative_path() for vector in vectors.values())
    return Change(
        before=adds,
        rows=rows,
        after=after,
        of=np.array(list(vectors), np.int64),
        new_files=tuple(name for name in names if name is not None),
    )


def parts(adds: pa.Table, *, most_files: int, most_bytes: int) -> Iterator[pa.Table]:
    """Divides files into parts of at most `most_files`, and of about `most_bytes`."""
    at, total = np.arange(adds.num_rows), np.cumsum(_sizes(adds))
    number = (total // most_bytes) * (adds.num_rows + 1) + at // most_files
    ends = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), adds.num_rows]
    start = 0
    for end in ends:
        if end > start:
            yield adds.slice(start, end - start)
        start = end


def _sizes(adds: pa.Table) -> Numbers:
    return np.asarray(pc.fill_null(adds["size"], 0), np.int64)


def _has_vector(adds: pa.Table) -> Mask:
    if "deletionVector" not in adds.column_names:
        return np.zeros(adds.num_rows, np.bool_)
    has_vector: Mask = pc.is_valid(adds["deletionVector"]).to_numpy().astype(np.bool_)
    return has_vector


_DELETE = "delete"
_LONGEST_TEXT = 65_535
"""Bytes that Java's `DataOutputStream.writeUTF` accepts."""


def has_feed(snapshot: Snapshot) -> bool:
    """Whether commits to the table need change data."""
    is_on: bool = snapshot.properties.enable_change_data_feed
    return is_on and supports(snapshot.protocol, "changeDataFeed")


def is_too_long_for_spark(rows: BitMap64) -> bool:
    """Whether Delta Spark cannot read the change of a deletion vector into one with these rows in
    addition. Sizes are those of bitmaps without run-length encoding, which are the largest.
    """
    containers, counts = np.unique(
        np.asarray(rows.to_array(), np.uint64) >> np.uint64(16), return_counts=True
    )
    bitmaps = len(np.unique(containers >> np.uint64(16)))
    size = 12 + 12 * bitmaps + int((8 + np.minimum(2 * counts, 8192)).sum())
    # The text has five characters for four bytes.
    return -(-size // 4) * 5 > _LONGEST_TEXT


def changes_of(spec: RewriteSpec) -> RewriteSpec:
    """Returns how to write change data files with deleted rows, beside files of `spec`."""
    files = replace(
        spec.files,
        layout=spec.files.layout.of_changes(_DELETE),
        statistics=StatisticsColumns(leaves=(), tight_bounds=False),
    )
    naming = replace(spec.naming, of_changes=True)
    return replace(spec, files=files, naming=naming, copied_group_bytes=None)


def change_actions(bins: Sequence[RewrittenBin]) -> pa.Table:
    """Returns the `cdc` actions of change data files."""
    actions = [
        {
            "path": path,
            "partitionValues": list(bin_.bin.partition_values),
            "size": output.size,
            "dataChange": False,
        }
        for bin_ in bins
        for output, path in zip(bin_.outputs, bin_.paths, strict=True)
    ]
    return pa.Table.from_pylist(actions, schema=pa.schema(list(CDC_TYPES.items())))
