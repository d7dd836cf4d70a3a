"""Lists a catalog with many requests at once, where a part that fails hides no other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.catalog import (
    Aspect,
    CatalogFailure,
    CatalogListing,
    CatalogTable,
    PassedOver,
    checked_location,
)
from delta_maintenance.catalogs.credentials import texts
from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.catalogs.http.client import CatalogClient
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, DeltaMaintenanceError

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""The number of requests of one listing that are in flight at once."""
_MOST_UNANSWERED = 3
"""A catalog that leaves this many parts of a listing unanswered is not asked for the others."""


class Gathering:
    """The listing of one catalog while it is made. Thread-safe.

    If it does not list tables but asks for more of them, `subject` says for what, such as `the
    tags`, and `needs` which rights that takes.
    """

    def __init__(
        self,
        client: CatalogClient,
        kind: CatalogKind,
        *,
        subject: str | None = None,
        needs: str | None = None,
    ) -> None:
        self.kind = kind
        self._of = f"{subject} of " if subject else ""
        self._needs = needs
        self._client = client
        self._before = client.requests, client.answers
        self._lock = threading.Lock()
        self._tables: list[CatalogTable] = []
        self._passed_over: Counter[PassedOver] = Counter()
        self._failures: dict[str, CatalogFailure] = {}
        self._unanswered = 0
        self._end: CatalogError | None = None
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="catalog")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, name_parts: tuple[str, ...], described: Callable[[], CatalogTable]) -> None:
        """Adds a Delta table. If `describe` fails, the failure is noted under these parts."""
        with self._noting(name_parts):
            table = described()
            with self._lock:
                self._tables.append(table)

    def pass_over(self, reason: PassedOver) -> None:
        """Counts an entry that is not listed."""
        with self._lock:
            self._passed_over[reason] += 1

    def each(
        self, task: Callable[[T], Iterable[R]], items: Iterable[tuple[tuple[str, ...], T]]
    ) -> list[R]:
        """Calls `task` for each item, `AT_ONCE` at a time, and returns all that it yields.

        An item comes with the parts of its name. If `task` fails, what it has yielded is kept,
        and the failure is noted.
        """
        results: list[R] = []

        def one(item: tuple[tuple[str, ...], T]) -> None:
            name_parts, value = item
            if self._end is not None:
                self._note(name_parts[:1], self._end)
                return
            with self._noting(name_parts):
                for result in task(value):
                    with self._lock:
                        results.append(result)

        list(self._pool.map(one, items))
        return results

    def listing(self) -> CatalogListing:
        """Returns the result. Raises the first failure if no request had an answer."""
        if self._failures and self._client.answers == self._before[1]:
            raise next(iter(self._failures.values())).error
        return self.part(self._tables)

    def part(self, tables: Iterable[CatalogTable]) -> CatalogListing:
        """Returns the result with these tables, also if all of it are failures."""
        return CatalogListing(
            tables=tuple(sorted(tables, key=lambda table: table.name)),
            passed_over=dict(self._passed_over),
            failures=tuple(failure for _, failure in sorted(self._failures.items())),
            requests=self._client.requests - self._before[0],
        )

    @contextmanager
    def _noting(self, name_parts: tuple[str, ...]) -> Iterator[None]:
        try:
            yield
        except RequestRefused as failure:
            name = f"{self._of}{CatalogName(self.kind, name_parts)}"
            with self._lock:
                self._unanswered += failure.is_unsure and failure.status is None
                is_over = failure.status == 401 or self._unanswered >= _MOST_UNANSWERED
                if is_over and self._end is None:
                    self._end = self._error(failure, f"{name} and all that follows")
                end = self._end if is_over else None
            # No other part of the catalog would be answered either: one failure stands for all.
            self._note(name_parts[:1] if end else name_parts, end or self._error(failure, name))
        except DeltaMaintenanceError as error:
            self._note(name_parts, error)

    def _error(self, failure: RequestRefused, where: str) -> CatalogError:
        return self._client.error(failure, where, needs=self._needs)

    def _note(self, name_parts: tuple[str, ...], error: DeltaMaintenanceError) -> None:
        where = str(CatalogName(self.kind, name_parts))
        with self._lock:
            # The namespaces and the tables of a namespace are separate lists.
            self._failures.setdefault(where, CatalogFailure(where=where, error=error))


def delta_table(
    name: CatalogName, location: object, *, vends_credentials: bool = False, **fields: Any
) -> CatalogTable:
    """Returns a table with a checked location. `CatalogError` if it is missing or no address.

    `vends_credentials` says whether the catalog may vend credentials for a table that needs any.
    """
    if not isinstance(location, str) or not location:
        raise CatalogError(
            f"the catalog does not state the location of {name}",
            remedy="grant the right to read the table, or correct its entry in the catalog",
        )
    needs = not checked_location(name, location).is_local
    vends = vends_credentials and needs
    return CatalogTable(name=name, location=location, vends_credentials=vends, **fields)


def text(value: object) -> str | None:
    """Returns a string that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def further_aspects(
    settings: CatalogSettings, aspects: frozenset[Aspect]
) -> tuple[frozenset[Aspect], bool]:
    """Reads the option `tags`: `true` asks for all aspects always, `false` never for tags, and by
    default only conditions ask. Returns what is left of `aspects`, and whether to ask always.
    """
    tags = settings.flag("tags")
    return aspects - ({Aspect.TAGS} if tags is False else set()), tags is True


def texts_of(
    answer: Mapping[str, Any], field: str, name: str, subject: str
) -> list[Mapping[str, str]]:
    """Returns the texts of each object in a list, each of which has the text `name`.

    `CatalogError` for any other form, because a tag that is not understood must not count as
    absent. `subject` says of what the list is.
    """
    items = answer.get(field)
    values: list[Mapping[str, str]] = []
    if isinstance(items, list):
        values = [texts(item) for item in items]
    if items is not None and (not isinstance(items, list) or not all(map(_has(name), values))):
        raise CatalogError(
            f"the catalog states {subject} in a form that is not understood",
            remedy="report the version of the catalog, or set its option tags to false",
        )
    return values


def _has(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda values: bool(values.get(name))
