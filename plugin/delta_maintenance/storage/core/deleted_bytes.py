"""How long a store keeps, and charges for, the contents of files that are deleted now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

DeletedState: TypeAlias = Literal["freed", "later", "never", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedBytes:
    """What becomes of the bytes of a file that is deleted now, by the settings of its store."""

    state: DeletedState
    """`never`: the store keeps them until somebody deletes them there."""
    why: str
    """One clause."""
    after: timedelta | None = None
    """With `later`: how long after the deletion they end at the latest."""

    @classmethod
    def kept_for(cls, after: timedelta, why: str) -> DeletedBytes:
        """Returns those that end after a time; without a time, those that end at once."""
        if not after:
            return FREED
        return cls(state="later", after=after, why=why)


FREED = DeletedBytes(state="freed", why="the store keeps nothing of deleted files")
