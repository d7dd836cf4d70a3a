"""All errors that this library raises, named by the remedy.

The message is one line with the table, the version, the file, the problem and the remedy.
`exit_status` is the exit status of the command line; orchestrators use `retryable` to decide
whether to try again.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from delta_maintenance.redaction import redact, redact_address

_logger = logging.getLogger(__name__)

MOST_BYTES = 1000
"""The maximum size of an error line in bytes. Quoted text comes from tables and can have any
length.
"""
_MOST_QUOTED = 160
_MOST_PROBLEM = 500
_ENDS = 8192
"""The number of characters at each end of a long problem that are examined."""
MOST_NAMES = 50_000
"""The number of names of tables that are remembered: some 15 MB."""
_NAMES: OrderedDict[str, str] = OrderedDict()
"""The names that tables have in catalogs, by address. A table is opened by its name in one place
and named by its address in a hundred, so errors and log lines look its name up.
"""
_NAMES_LOCK = threading.Lock()


def shorten(text: str, most: int = MOST_BYTES) -> str:
    """Returns the text on one line and in at most `most` bytes of UTF-8; the middle may be left
    out.

    Characters that UTF-8 cannot represent, such as undecodable bytes of a file name, are escaped.
    """
    data = " ".join(text.split()).encode(errors="backslashreplace")
    if len(data) <= most:
        return data.decode()
    mark = f" …[{len(data)} bytes]… ".encode()
    head = (most - len(mark)) * 2 // 3
    tail = most - len(mark) - head
    return b"".join([data[:head], mark, data[len(data) - tail :]]).decode(errors="ignore")


def message_line(text: str, most: int = MOST_BYTES) -> str:
    """Like `shorten`, without credentials in addresses."""
    if len(text) > 2 * _ENDS:
        # Redaction takes more than linear time, and only the ends of a long text are shown.
        text = text[:_ENDS] + text[-_ENDS:]
    return shorten(redact(text), most)


class DeltaMaintenanceError(Exception):
    """Base class of all errors of this library.

    `problem` is one clause without a full stop; `remedy` is one imperative clause. A table that was
    opened by its name in a catalog is shown with both, the address and the name. Credentials in
    addresses in any argument are replaced by `***` immediately, so that no attribute, pickle or
    traceback of the error contains them.
    """

    exit_status: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    usual_remedy: ClassVar[str | None] = None
    """The remedy if an error is raised without a more specific one."""

    def __init__(
        self,
        problem: str,
        *,
        table: str | None = None,
        version: int | None = None,
        file: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = message_line(problem, _MOST_PROBLEM)
        self.table: str | None = None
        self.catalog_name: str | None = None
        """The name of the table in its catalog, if it was opened by that."""
        self._set_table(table)
        self.version = version
        self.file = _shown(file)
        self.remedy = redact(remedy) if remedy is not None else self.usual_remedy
        super().__init__(self.problem)

    def locate(
        self, *, table: str | None = None, version: int | None = None, file: str | None = None
    ) -> DeltaMaintenanceError:
        """Adds the location of the problem, unless an inner layer has already set it."""
        if self.table is None:
            self._set_table(table)
        self.version = self.version if self.version is not None else version
        self.file = self.file if self.file is not None else _shown(file)
        return self

    def _set_table(self, table: str | None) -> None:
        if table is not None:
            self.table, self.catalog_name = redact_address(table), name_at(table)

    def __str__(self) -> str:
        """One line of at most `MOST_BYTES` bytes, its longest parts shortened first."""
        line = self._line(self.table, self.catalog_name, self.file, self.remedy)
        if len(line.encode(errors="backslashreplace")) > MOST_BYTES:
            quoted = (self.table, self.catalog_name, self.file, self.remedy)
            line = self._line(*(text and shorten(text, _MOST_QUOTED) for text in quoted))
        return shorten(line)

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython shows: the message, as most errors are no defects.

        `%tb plain` shows the traceback, and so does any other mode than the usual one.
        """
        formatter = sys.modules["IPython"].get_ipython().InteractiveTB
        if formatter.mode != "Context":
            return list(formatter.structured_traceback(type(self), self, self.__traceback__))
        lines = formatter.get_exception_only(type(self), self)
        return ["".join(lines).rstrip(), "%tb plain shows the traceback."]

    def _line(
        self, table: str | None, name: str | None, file: str | None, remedy: str | None
    ) -> str:
        named = f" ({name})" if name is not None else ""
        where = [
            part
            for part in (
                f"table {table}{named}" if table is not None else None,
                f"version {self.version}" if self.version is not None else None,
                f"file {file}" if file is not None else None,
            )
            if part is not None
        ]
        text = ": ".join([", ".join(where), self.problem] if where else [self.problem])
        return text if remedy is None else f"{text}; {remedy}"


@contextmanager
def locating(
    *, table: str | None = None, version: int | None = None, file: str | None = None
) -> Iterator[None]:
    """Adds the location of a problem to the errors of a block, as `locate` does."""
    try:
        yield
    except DeltaMaintenanceError as error:
        error.locate(table=table, version=version, file=file)
        raise


def _shown(address: str | None) -> str | None:
    return None if address is None else redact_address(address)


class InvalidRequestError(DeltaMaintenanceError):
    """The call itself is wrong: an unknown option, a malformed value. Correct the call."""

    exit_status = 2


class VersionNotFoundError(InvalidRequestError):
    """The requested version or timestamp is not in the retained history. Request another one."""


class UnsupportedFeatureError(DeltaMaintenanceError):
    """The table's protocol requires something that this release does not fully support.

    Nothing was changed.
    """

    exit_status = 3


class RefusedError(DeltaMaintenanceError):
    """The request is unsafe on this table in its present state. Nothing was changed."""

    exit_status = 3


class CommitConflictError(DeltaMaintenanceError):
    """Another writer committed first, and the retries are used up. Run again."""

    exit_status = 4
    retryable = True


class BusyError(DeltaMaintenanceError):
    """Another process is working on the table. Wait until it has finished."""

    exit_status = 4
    retryable = True


class CommitUnknownError(DeltaMaintenanceError):
    """A write was sent, but its outcome could not be determined. Check the table before running
    again.
    """

    exit_status = 4


class IncompleteError(DeltaMaintenanceError):
    """A part of the work is done. Run again to continue."""

    retryable = True
    usual_remedy = "run again"


class PartialFailureError(DeltaMaintenanceError):
    """A part of the work failed, and trying again does not help. See the Result."""


class CorruptTableError(DeltaMaintenanceError):
    """The log contradicts the protocol or itself. Repair the table."""

    exit_status = 5
    usual_remedy = "restore the damaged files from a backup"


class OversizedFileError(CorruptTableError):
    """A file of the log would take more memory than `limits.ReadLimits` allows. Raise the limit if
    the file is sound."""


class NotADeltaTableError(DeltaMaintenanceError):
    """There is no Delta log at this address. Correct the address."""

    exit_status = 5


class StorageError(DeltaMaintenanceError):
    """The store failed or gave an incomplete answer. Try again when it is available."""

    retryable = True


class StorageAccessError(StorageError):
    """The store rejects the credentials, permissions or address. Correct them."""

    retryable = False


class FullStoreError(StorageError):
    """The store has no room for what is written. Make room: a vacuum does, which needs none."""


class CatalogError(DeltaMaintenanceError):
    """A catalog refuses the request, or does not know the name: an invalid token, a missing right,
    an unknown catalog. Correct the configuration of the catalog.
    """

    exit_status = 3
    usual_remedy = "check the name, the address and the credentials of the catalog"


class AbsentTableError(CatalogError):
    """A policy names a table that its catalog does not have. Correct the name, or remove it."""

    usual_remedy = "correct the name in the policy, or remove it"


class EmptyPatternError(DeltaMaintenanceError):
    """A pattern of a policy matches no table, and did in an earlier run. Restore the rights, or
    remove the pattern.
    """

    exit_status = 3
    usual_remedy = (
        "check the rights of the caller, the address and the pattern; if the tables were dropped, "
        "remove the pattern from the policy, or acknowledge this"
    )


class CatalogUnavailableError(CatalogError):
    """A catalog does not answer, or answers that it cannot at present. Run again later."""

    retryable = True
    usual_remedy = "check the address of the catalog, or run again when it is available"


class UnexpectedError(DeltaMaintenanceError):
    """An error of another library, or a defect of this one. Run again; report it if it persists."""

    retryable = True


class VerificationError(DeltaMaintenanceError):
    """A written file does not read back as intended, and was not published. Report it."""


def failure_of(error: Exception, *, where: str) -> DeltaMaintenanceError:
    """Returns an error of this library as it is. Any other is converted, and logged with its
    traceback.

    `where` names the table, and the operation if there is one.
    """
    if isinstance(error, DeltaMaintenanceError):
        return error
    # The message of a `MemoryError` is often empty.
    problem = ": ".join(part for part in (type(error).__name__, str(error)) if part)
    more = "give the process more memory, or " if isinstance(error, MemoryError) else ""
    found = UnexpectedError(problem, remedy=f"{more}see the log for the details")
    _logger.error("%s: %s", where, found.problem, exc_info=error)
    return found


def closest(name: str, known: Iterable[str], *, likeness: float = 0.7) -> str | None:
    """Returns the known name that is most like a given one, whatever their case and the hyphens
    before them.

    None if no ratio of equal characters reaches `likeness`.
    """
    # Loaded here, because most names are right.
    from difflib import SequenceMatcher

    word = name.lower().lstrip("-")

    def ratio(known_name: str) -> float:
        other = known_name.lower().lstrip("-")
        # The matcher is not symmetric: `retain` is more like `retention` than the other way round.
        return max(SequenceMatcher(None, *pair).ratio() for pair in ((word, other), (other, word)))

    ratio_of_best, best = max(((ratio(name), name) for name in known), default=(0.0, None))
    return best if ratio_of_best >= likeness else None


def remember_name(address: str, name: str) -> None:
    """Remembers the name of the table at an address. The one that was remembered last applies."""
    with _NAMES_LOCK:
        _NAMES[_name_key(address)] = name
        _NAMES.move_to_end(_name_key(address))
        if len(_NAMES) > MOST_NAMES:
            _NAMES.popitem(last=False)


def name_at(address: str) -> str | None:
    """Returns the name of the table at an address; None if it was not opened by a name."""
    # Without the lock, because nothing else is known of most tables.
    return _NAMES.get(_name_key(address)) if _NAMES else None


def table_text(address: str) -> str:
    """Returns an address with the name of its table, for people."""
    name = name_at(address)
    return address if name is None else f"{address} ({name})"


def _name_key(address: str) -> str:
    return address.removeprefix("file://").rstrip("/")
