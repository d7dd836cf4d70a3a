"""What becomes of the bytes of files that an operation deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

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
            found = ask()
        except Exception as error:
            failure = failure_of(error, where="the settings of the store")
            why = f"the settings of the store cannot be read: {failure}"
            found = DeletedBytes(state="unknown", why=why)
        return cls(
            deleted_bytes=deleted_bytes,
            state=found.state,
            at=None if found.after is None else ended + found.after,
            why=found.why,
        )

    def is_free(self, now: datetime) -> bool:
        """Whether the bytes are no longer paid for."""
        return self.state == "freed" or (self.at is not None and self.at <= now)


def freed_bytes(found: Iterable[Freed], now: datetime) -> int:
    """Returns the sum of the bytes that are no longer paid for."""
    return sum(each.deleted_bytes for each in found if each.is_free(now))


def freed_text(found: Freed, now: datetime) -> str:
    """Returns what a deletion frees, in one line."""
    return next(unfreed_texts([found], now), size_text(found.deleted_bytes))


def unfreed_texts(
    found: Iterable[Freed], now: datetime, *, size_of: Callable[[int], str] = size_text
) -> Iterator[str]:
    """Yields a clause for the deleted bytes that are still paid for, by when and why.

    `size_of` formats numbers of bytes.
    """
    sums: dict[str, int] = {}
    for each in found:
        if not each.is_free(now) and each.deleted_bytes:
            text = _unfreed(each)
            sums[text] = sums.get(text, 0) + each.deleted_bytes
    for text, size in sums.items():
        yield f"{size_of(size)} deleted, {text}"


def _unfreed(found: Freed) -> str:
    if found.at is not None:
        return f"freed by {found.at:%Y-%m-%d %H:%M} UTC: {found.why}"
    if found.state == "never":
        return f"which frees nothing: {found.why}"
    return f"and whether that frees storage is unknown: {found.why}"
