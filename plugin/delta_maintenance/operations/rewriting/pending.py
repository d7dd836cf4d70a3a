"""Rewritten bins that are not committed yet, and the possible outcomes of a bin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.protocol.data_files.carry_over import Positions
from delta_maintenance.table.data.bins import RewrittenBin

Fate = Literal[
    "committed",
    "remapped",
    "re-spun",
    "superseded",
    "dropped",
    "hot",
    "refused",
    "failed",
    "not-proved",
    "void",
    "unknown",
    "not-started",
]
"""The outcome of a bin. `remapped` and `re-spun` bins are committed without rows that other writers
deleted in the meantime, by a deletion vector or by writing the file again. `superseded`: another
writer rewrote a source. `dropped`: other writers restored rows of a source, or removed all of them.
`hot`: other writers changed the sources again and again. `refused`: no source can be rewritten
exactly. `void`: the table changed so that the new files are no longer valid. `unknown`: the
response to the commit was lost.
"""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A rewritten bin that waits for its commit."""

    done: RewrittenBin
    adds: pa.Table
    """The current adds of the sources, in order."""
    fate: Fate | None = None
    problem: str | None = None
    version: int | None = None
    remaps: int = 0
    """How often deletion vectors were written for the new files."""
    re_spins: int = 0
    """How often the new files were written again."""
    current: RewrittenBin | None = None
    """The bin without rows that were deleted since, if this is committed instead of `done`."""
    vectors: dict[int, DeletionVectorDescriptor] = field(default_factory=dict)
    """Deletion vectors of new files, by the number of the file."""
    removed: frozenset[int] = frozenset()
    """Sources that other writers removed with their rows; the commit has no removes for them."""
    late: frozenset[int] = frozenset()
    """Sources with rows that were deleted after the sources were read."""
    proved: Mapping[int, Positions] = field(default_factory=dict)
    """Rows of each source whose positions in the new files were verified in an earlier attempt."""
    state: tuple[Any, ...] = ()
    """The state of the changed sources on which the fields above are based."""
    read: pa.Table = field(init=False)
    """The adds of the sources at the time when their rows were read."""

    def __post_init__(self) -> None:
        self.read = self.adds

    @property
    def result(self) -> RewrittenBin:
        """The bin to commit."""
        return self.current if self.current is not None else self.done
