"""The interface of HDFS clients, and the classification of failures."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, ClassVar

from delta_maintenance.rest.failure import PAUSES, RequestFailure
from delta_maintenance.storage.core.directory_store import Entry


class HdfsFailure(RequestFailure):
    """A failed request to HDFS. `code` is the name of its exception."""

    service = "HDFS"
    access_codes = frozenset(
        (
            "AccessControlException",
            "AuthenticationException",
            "AuthorizationException",
            "ExpiredToken",
            "InvalidToken",
            "SecurityException",
            # Sent by proxies, never by a name node.
            "HTTP 404",
        )
    )

    @property
    def missing(self) -> bool:
        return self.code == "FileNotFoundException"

    @property
    def precondition_failed(self) -> bool:
        return self.code == "FileAlreadyExistsException"

    @property
    def conflict(self) -> bool:
        # The name node temporarily refuses every change, so this request had no effect.
        return self.code in ("StandbyException", "RetriableException", "SafeModeException")

    @property
    def access(self) -> bool:
        # Java exceptions of every kind come with the status 403.
        is_access_code = self.code in self.access_codes or self.code == f"HTTP {self.status}"
        return self.status == 401 or (is_access_code and self.status in (301, 302, 307, 403, 404))

    @property
    def full(self) -> bool:
        return self.code.endswith("QuotaExceededException")

    @property
    def remedy(self) -> str | None:
        text = str(self)
        if "libgssapi" in text:
            return "install the system library libgssapi_krb5"
        if self.status == 401:
            return f"{_TICKET} and give kerberos=true, or give a delegation token"
        if "InvalidToken" in text or self.code == "ExpiredToken":
            return "give a new delegation token"
        if self.code == "TimeoutError" or text.endswith(_HUNG_UP):
            return (
                "run again when HDFS is available; if it requires Kerberos, set "
                "hadoop.security.authentication=kerberos"
            )
        return _REMEDIES.get(self.code)

    @property
    def is_unsupported(self) -> bool:
        return self.status == 501 or self.code == "UnsupportedOperationException"

    @property
    def is_past_end(self) -> bool:
        """Whether a read begins beyond the end of a file."""
        return "out of the range" in str(self)

    @property
    def has_content(self) -> bool:
        """Whether a directory is not empty."""
        return self.code == "PathIsNotEmptyDirectoryException"


_TICKET = "get a Kerberos ticket (kinit)"
_HUNG_UP = "RPC listener disconnected"
"""The error text of `hdfs-native` if the name node closes the connection."""
_REMEDIES = {
    "AuthenticationException": f"{_TICKET}, or name a keytab that can be read",
    "SafeModeException": "run again when the name node has left safe mode "
    "(hdfs dfsadmin -safemode get)",
    "NSQuotaExceededException": "raise the name quota of the directory (hdfs dfsadmin -setQuota) "
    "or delete files in it, and run again",
    # The name node reserves a whole block for a file that is being written.
    "DSQuotaExceededException": "raise the space quota of the directory "
    "(hdfs dfsadmin -setSpaceQuota) to at least one more block for each replica, or delete files "
    "in it, and run again",
    "QuotaByStorageTypeExceededException": "raise the space quota of the storage type "
    "(hdfs dfsadmin -setSpaceQuota -storageType) or delete files in the directory, and run again",
}
"""By the name of the exception."""


class HdfsClient(ABC):
    """The calls of one file system. Thread-safe. Paths are absolute and literal.

    A call that is documented as sent once leaves retries to its caller, who knows whether a
    repetition is safe; all others are retried after each of `pauses`, in seconds. All raise
    `HdfsFailure`.
    """

    has_inodes: ClassVar[bool]
    """Whether the tag of an entry is its inode number, which is unique."""

    def __init__(
        self, *, sleep: Callable[[float], None] = time.sleep, pauses: Sequence[float] = PAUSES
    ) -> None:
        self.sleep = sleep
        self.pauses = pauses

    @abstractmethod
    def status(self, path: str) -> Entry:
        """Describes a file or directory. A failure that is `missing` if it does not exist."""

    @abstractmethod
    def entries(self, path: str, after: str = "") -> Iterator[Entry]:
        """Lists a directory, page by page.

        Names up to `after` may be left out. A file has no entries.
        """

    @abstractmethod
    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Reads a file, or up to `length` bytes of it, starting at `offset`."""

    @abstractmethod
    def upload(self, path: str, source: BinaryIO, size: int) -> None:
        """Creates a file and its directories; sent once. `source` is read from its current
        position.

        When this returns, the file is closed and its bytes are synced. An existing file is never
        replaced.
        """

    @abstractmethod
    def rename(self, path: str, target: str, *, replace: bool) -> None:
        """Renames a file in one atomic step of the name node; sent once.

        Without `replace`, a failure that is `precondition_failed` if the target exists.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes a file or an empty directory; sent once. A missing path is not an error."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections."""
