"""The changes that usual commits make to the files of a table, without the state before them.

Most operations add files that are new and remove files that are live. The totals after such commits
follow from the totals before them and from the commits themselves. Commits of other operations may
repeat files, for which the state before them is needed; for these, there is no result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.actions.model import CommitInfo
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import CommitText, parse_other_lines
from delta_maintenance.table.read.log_file import LogEntry

_Sizes = npt.NDArray[np.int64]

MOST_TAIL_BYTES = 32 << 20
"""The maximum size of the commits whose file actions are held in memory at once."""

_NEW_FILES = frozenset(
    {
        "COPY INTO",
        "DELETE",
        "MERGE",
        "OPTIMIZE",
        "REORG",
        "STREAMING UPDATE",
        "TRUNCATE",
        "UPDATE",
        "WRITE",
    }
)
"""Operations that add files which were not live or removed before, and remove live ones."""
_FIELDS = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "size", "extendedFileMetadata"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """The files that some commits add and remove."""

    added: _Sizes
    """The size of each added file in bytes."""
    removed: _Sizes
    vectors: int = 0
    """The change of the number of deletion vectors."""
    deleted_rows: int = 0
    """The change of the number of rows that they delete."""

    @classmethod
    def of(cls, lines: Iterable[FileLines]) -> Self | None:
        """Computes the changes of commits that add new files, from their file actions; None if
        uncertain.
        """
        sources = list(lines)
        if not sources:
            return cls(added=np.empty(0, np.int64), removed=np.empty(0, np.int64))
        parsed = parse_file_actions(
            sources, keys=MapKeys(partition_columns=frozenset()), fields=_FIELDS
        )
        sizes, vectors, deleted = [], 0, 0
        for sign, batch in ((1, parsed.adds), (-1, parsed.removes)):
            keys = logical_file_keys(batch)
            if pc.count_distinct(keys).as_py() < len(keys):
                return None
            file_sizes = _sizes(batch)
            if file_sizes is None or (sign < 0 and not _states_sizes(batch)):
                return None
            sizes.append(file_sizes)
            with_vector, rows = _vectors(batch)
            vectors += sign * with_vector
            deleted += sign * rows
        return cls(added=sizes[0], removed=sizes[1], vectors=vectors, deleted_rows=deleted)

    @property
    def files(self) -> int:
        """The change of the number of live files."""
        return len(self.added) - len(self.removed)

    @property
    def size(self) -> int:
        """The change of the size of live files."""
        return int(self.added.sum()) - int(self.removed.sum())

    @property
    def tombstones(self) -> int:
        """The change of the number of tombstones."""
        return len(self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledCommits:
    """Some adjacent commits, the newest first."""

    state: StateReplay
    commit_info: CommitInfo | None
    """The `commitInfo` of the newest commit."""
    lines: tuple[FileLines, ...]
    is_usual: bool
    """Whether all file actions belong to operations that add new files and remove live ones."""

    @classmethod
    def of(cls, texts: Iterable[tuple[LogEntry, CommitText]]) -> Self:
        """Replays commits, which come newest first."""
        state, infos, lines, is_usual = StateReplay(), [], [], True
        for _, text in texts:
            actions, beside = parse_other_lines(text, commit_info=True)
            state.add(
                protocol=actions.protocol,
                metadata=actions.metadata,
                txns=actions.txns.values(),
                domains=actions.domains.values(),
            )
            info = actions.commit_info
            infos.append(info)
            file_lines = FileLines.of(text, beside)
            if file_lines.runs:
                lines.append(file_lines)
                is_usual &= info is not None and info.operation in _NEW_FILES
            is_usual &= not actions.unknown
        return cls(
            state=state,
            commit_info=infos[0] if infos else None,
            lines=tuple(lines),
            is_usual=is_usual,
        )

    def changes(self) -> FileChanges | None:
        """The changes to the files; None if they are uncertain."""
        return FileChanges.of(self.lines) if self.is_usual else None


def _sizes(batch: pa.Table) -> _Sizes | None:
    if not batch.num_rows:
        return np.empty(0, np.int64)
    column = batch["size"] if "size" in batch.column_names else None
    if column is None or column.null_count or pc.min(column).as_py() < 0:
        return None
    return np.asarray(column.to_numpy(), np.int64)


def _states_sizes(removes: pa.Table) -> bool:
    """Whether the sizes of all removes are reliable ("Add File and Remove File")."""
    if "extendedFileMetadata" not in removes.column_names:
        return not len(removes)
    stated = pc.fill_null(removes["extendedFileMetadata"], False)
    return bool(pc.all(stated, min_count=0).as_py())


def _vectors(batch: pa.Table) -> tuple[int, int]:
    """Returns the number of deletion vectors of some files, and of the rows that they delete."""
    if "deletionVector" not in batch.column_names:
        return 0, 0
    column = batch["deletionVector"]
    deleted = pc.sum(pc.struct_field(column, "cardinality")).as_py() or 0
    return len(column) - column.null_count, deleted
