"""A rewritten bin between its work and its commit, and how the work on a bin can end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from delta_maintenance.protocol.actions.deletion_vectors import DeletionVectorDescriptor
from delta_maintenance.table.data.rewrite import RewrittenBin

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
"""How the work on a bin ended. `remapped` and `re-spun` bins are committed without rows that others
deleted meanwhile: by a deletion vector, or by writing the file once more. `superseded`: others
rewrote a source themselves. `dropped`: others brought rows of a source back, or removed all of
them. `hot`: others changed its sources several times. `refused`: no source can be rewritten
exactly. `void`: the table changed so that the new files no longer fit. `unknown`: the answer to the
commit was lost."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A rewritten bin that waits for its commit."""

    done: RewrittenBin
    adds: pa.Table
    """The current adds of its sources, in their order."""
    fate: Fate | None = None
    problem: str | None = None
    version: int | None = None
    remaps: int = 0
    """How often its deletion vectors were written."""
    re_spins: int = 0
    """How often its new files were written anew."""
    current: RewrittenBin | None = None
    """The bin without rows that were deleted since, if it is committed in place of `done`."""
    vectors: dict[int, DeletionVectorDescriptor] = field(default_factory=dict)
    """Deletion vectors of new files, by the number of the file."""
    removed: frozenset[int] = frozenset()
    """Sources that other writers removed with their rows; the commit has no removes for them."""
    late: frozenset[int] = frozenset()
    """Sources with rows that were deleted after the sources were read."""
    state: tuple[Any, ...] = ()
    """What was known of the touched sources when this was worked out."""
    read: pa.Table = field(init=False)
    """The adds of its sources as they were when their rows were read."""

    def __post_init__(self) -> None:
        self.read = self.adds

    @property
    def result(self) -> RewrittenBin:
        """The bin to commit."""
        return self.current if self.current is not None else self.done
