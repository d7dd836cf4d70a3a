"""What becomes of the bytes of files that an operation deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance import clock
from delta_maintenance.errors import failure_of
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.storage.core.base import DeletedBytes, DeletedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed(Record):
    """The bytes of deleted files, and since when their storage is no longer paid for."""

    deleted_bytes: int
    state: DeletedState
    at: Instant | None = None
    """With `later`: when the store ends them at the latest."""
    why: str
    """One clause: the settings of the store, or why they are unknown."""

    @classmethod
    def of(cls, deleted_bytes: int, ask: Callable[[], DeletedBytes], *, ended: datetime) -> Freed:
        """Asks a store what becomes of bytes that were deleted until now; never raises for it."""
        try:
            deleted_state = ask()
        except Exception as error:
            failure = failure_of(error, where="the settings of the store")
            problem = f"the settings of the store cannot be read: {failure}"
            deleted_state = DeletedBytes(state="unknown", why=problem)
        return cls(
            deleted_bytes=deleted_bytes,
            state=deleted_state.state,
            at=None if deleted_state.after is None else ended + deleted_state.after,
            why=deleted_state.why,
        )

    def is_free(self, now: datetime) -> bool:
        """Whether the bytes are no longer paid for."""
        return self.state == "freed" or (self.at is not None and self.at <= now)


def freed_bytes(deletions: Iterable[Freed], now: datetime) -> int:
    """Returns the sum of the bytes that are no longer paid for."""
    return sum(deletion.deleted_bytes for deletion in deletions if deletion.is_free(now))


def freed_text(deletion: Freed, now: datetime) -> str:
    """Returns what a deletion frees, in one line."""
    return next(unfreed_texts([deletion], now), size_text(deletion.deleted_bytes))


def unfreed_texts(
    deletions: Iterable[Freed], now: datetime, *, size_of: Callable[[int], str] = size_text
) -> Iterator[str]:
    """Yields a clause for the deleted bytes that are still paid for, by when and why.

    `size_of` formats numbers of bytes.
    """
    sums: dict[str, int] = {}
    for deletion in deletions:
        if not deletion.is_free(now) and deletion.deleted_bytes:
            text = _describe_unfreed(deletion)
            sums[text] = sums.get(text, 0) + deletion.deleted_bytes
    for text, size in sums.items():
        yield f"{size_of(size)} deleted, {text}"


def _describe_unfreed(deletion: Freed) -> str:
    if deletion.at is not None:
        return f"freed by {clock.minute_text(deletion.at)}: {deletion.why}"
    if deletion.state == "never":
        return f"which frees nothing: {deletion.why}"
    return f"and whether that frees storage is unknown: {deletion.why}"
