"""Failed requests to an object store, and their meaning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from delta_maintenance.errors import StorageAccessError, StorageError

T = TypeVar("T")

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds to wait before each further attempt."""
PATIENCE = 45.0
"""Seconds after which no further attempt begins. A client waits up to 60 s for an answer, so that a
server that accepts connections and never answers ends a request after one attempt."""


class RequestFailure(Exception):
    """A request without success.

    `status` is the HTTP status, None where no answer came; `code` is the error code of the store,
    or the name of the client's own error. Neither `code` nor `said` holds a secret.
    """

    service: ClassVar[str]
    """The store, as users call it."""
    access_codes: ClassVar[frozenset[str]] = frozenset()
    """Codes that only other credentials, permissions or another address can change."""

    def __init__(self, *, status: int | None, code: str, said: str) -> None:
        self.status = status
        self.code = code
        super().__init__(f"{code}: {said}" if said else code)

    @property
    def missing(self) -> bool:
        """There is no such object."""
        return self.status == 404 and self.code not in self.access_codes

    @property
    def precondition_failed(self) -> bool:
        """The condition of the request does not hold."""
        return self.status == 412

    @property
    def changed(self) -> bool:
        """The object is another one than the request meant."""
        return self.status == 412

    @property
    def out_of_range(self) -> bool:
        """The object has none of the bytes that were asked for: from the first on, it is empty."""
        return self.status == 416

    @property
    def conflict(self) -> bool:
        """Another request for the same key was under way; this one had no effect."""
        return self.status == 409

    @property
    def unsupported(self) -> bool:
        """The store, or the installed client, does not know this kind of request."""
        return self.status == 501

    @property
    def access(self) -> bool:
        """Only other credentials, permissions or another address can help."""
        return self.status in (301, 307, 401, 403) or self.code in self.access_codes

    @property
    def remedy(self) -> str | None:
        """What helps against this failure, if the store knows more than the usual remedies."""
        return None

    @property
    def unanswered(self) -> bool:
        """Whether the request took effect is unknown; it may be sent again."""
        if self.access or self.unsupported:
            return False
        return self.status is None or self.status >= 500 or self.status in (408, 429)


def patiently(
    attempt: Callable[[], T],
    sleep: Callable[[float], None],
    pauses: Sequence[float] = PAUSES,
    *,
    elapsed: Callable[[], float] = time.monotonic,
) -> T:
    """Repeats a request that may be repeated without harm.

    Raises the last failure if no attempt succeeds. `elapsed` is a clock in seconds.
    """
    begun = elapsed()
    for pause in pauses:
        try:
            return attempt()
        except RequestFailure as failure:
            if not (failure.unanswered or failure.conflict) or elapsed() - begun > PATIENCE:
                raise
        sleep(pause)
    return attempt()


def storage_error(
    failure: RequestFailure, *, permission: str, file: str | None = None
) -> StorageError:
    """What to tell a user of this library. `permission` names what the request needs."""
    if failure.access:
        return StorageAccessError(
            f"{failure.service} turns the request away ({failure})",
            file=file,
            remedy=failure.remedy or f"check credentials and address, and grant {permission}",
        )
    return StorageError(
        f"{failure.service} failed ({failure})",
        file=file,
        remedy=failure.remedy or "run again when it is well",
    )
