"""Failed requests to a store, and their classification."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from delta_maintenance.errors import FullStoreError, StorageAccessError, StorageError

T = TypeVar("T")

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""The pauses before the second and each further attempt, in seconds."""
PATIENCE = 45.0
"""No attempt begins more than this many seconds after the first one.

Clients wait up to 60 s for an answer, so a server that accepts connections and never answers gets
one attempt.
"""


class RequestFailure(Exception):
    """An unsuccessful request.

    `status` is the HTTP status, None without an answer; `code` is the error code of the store, or
    the name of the client's own error. Neither `code` nor `detail` contains a secret.
    """

    service: ClassVar[str]
    """The name of the store in messages."""
    access_codes: ClassVar[frozenset[str]] = frozenset()
    """Codes that only other credentials, permissions or another address can resolve."""

    bucket_codes: ClassVar[frozenset[str]] = frozenset(("NoSuchBucket", "ContainerNotFound"))
    """Codes for a bucket or a container that does not exist."""

    def __init__(self, *, status: int | None, code: str, detail: str) -> None:
        self.status = status
        self.code = code
        super().__init__(f"{code}: {detail}" if detail else code)

    @property
    def missing(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404 and self.code not in self.access_codes

    @property
    def precondition_failed(self) -> bool:
        """Whether the precondition of the request failed."""
        return self.status == 412

    @property
    def is_changed(self) -> bool:
        """Whether the object is not the one that the request refers to."""
        return self.status == 412

    @property
    def out_of_range(self) -> bool:
        """Whether the requested range starts beyond the end; at the first byte: the object is
        empty.
        """
        return self.status == 416

    @property
    def conflict(self) -> bool:
        """Whether another request for the same key was in progress; this one had no effect."""
        return self.status == 409

    @property
    def is_unsupported(self) -> bool:
        """Whether the store, or the installed client, does not support this kind of request."""
        return self.status == 501

    @property
    def access(self) -> bool:
        """Whether only other credentials, permissions or another address can resolve it."""
        return self.status in (301, 307, 401, 403) or self.code in self.access_codes

    @property
    def full(self) -> bool:
        """Whether there is no room for what is written."""
        return False

    @property
    def is_archived(self) -> bool:
        """Whether the object must be retrieved from an archive before it can be read."""
        return False

    @property
    def remedy(self) -> str | None:
        """A specific remedy, if the store knows one."""
        return None

    @property
    def is_unsure(self) -> bool:
        """Whether the effect of the request is unknown; it may be sent again."""
        if self.access or self.is_unsupported:
            return False
        return self.status is None or self.status >= 500 or self.status in (408, 429)


def patiently(
    attempt: Callable[[], T],
    sleep: Callable[[float], None],
    pauses: Sequence[float] = PAUSES,
    *,
    attempts: int = 1,
    elapsed: Callable[[], float] = time.monotonic,
) -> T:
    """Sends an idempotent request, with retries.

    Raises the last failure if no attempt succeeds. `PATIENCE` does not count before the given
    number of `attempts`. `elapsed` is a clock in seconds.
    """
    started = elapsed()
    for made, pause in enumerate(pauses, 1):
        try:
            return attempt()
        except RequestFailure as failure:
            is_late = made >= attempts and elapsed() - started > PATIENCE
            if is_late or not (failure.is_unsure or failure.conflict):
                raise
        sleep(pause)
    return attempt()


def repeated_page(*, file: str | None = None) -> StorageError:
    """Returns the error for a listing that would never end."""
    return StorageError(
        "the store returned the same page of a listing twice", file=file, remedy="run again"
    )


def storage_error(
    failure: RequestFailure, *, permission: str, file: str | None = None
) -> StorageError:
    """Converts a failure to the error for users. `permission` names what the request needs."""
    if failure.is_archived:
        return StorageAccessError(
            f"the file is archived, and {failure.service} does not let it be read ({failure})",
            file=file,
            remedy="retrieve it with the tools of the store, then run again; nothing is retrieved "
            "unasked",
        )
    if failure.code in failure.bucket_codes:
        return StorageAccessError(
            f"{failure.service} has no bucket or container of this name ({failure})",
            file=file,
            remedy="check its name in the address, and the account, region and endpoint",
        )
    if failure.access:
        return StorageAccessError(
            f"{failure.service} rejects the request ({failure})",
            file=file,
            remedy=failure.remedy or f"check credentials and address, and grant {permission}",
        )
    if failure.is_unsupported:
        return StorageAccessError(
            f"{failure.service} cannot do this ({failure})",
            file=file,
            remedy=failure.remedy
            or "open the table at another address of its files; running again does not help",
        )
    passes = failure.is_unsure or failure.conflict or failure.is_changed
    return (FullStoreError if failure.full else StorageError)(
        f"{failure.service} failed ({failure})",
        file=file,
        remedy=failure.remedy
        or (
            "run again when the store is available"
            if passes
            else "check the address and the options"
        ),
    )
