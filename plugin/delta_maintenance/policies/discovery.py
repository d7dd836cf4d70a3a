"""From the patterns of a policy to the tables that are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.policies.definition.patterns import Pattern
from delta_maintenance.policies.definition.policy import Policy, PolicyTable, TableEntry
from delta_maintenance.policies.definition.rules import StorageRule
from delta_maintenance.policies.storage import environment_options
from delta_maintenance.storage import Store, open_store
from delta_maintenance.storage.core.listing import EntryKind
from delta_maintenance.table.read.segment import LOG_DIRECTORY

_logger = logging.getLogger(__name__)

_PARALLEL = 16

OptionsAt = Callable[[StorageRule, str], Mapping[str, str]]
"""Gives the storage options that a rule refers to, for the store at an address."""


def _environment_options_at(rule: StorageRule, root: str) -> Mapping[str, str]:
    return environment_options(rule)


def discover(
    policy: Policy,
    *,
    storage_options: OptionsAt = _environment_options_at,
    parallel: int = _PARALLEL,
) -> tuple[PolicyTable, ...]:
    """Every table of the policy: those named, in its order, then those found, by pattern and path.

    Lists the folders below each pattern's fixed beginning, level by level, and enters neither
    tables nor links nor folders whose names begin with `.` or `_`. A listing that fails is an
    error, for half a list would pass for the whole. `InvalidRequestError` where two tables come to
    one name.
    """
    tables = {table.uri: table for table in policy.named_tables}
    for entry in policy.patterns:
        search = _Search(entry, parallel)
        # A pattern's own rules say how to reach its root.
        rule = policy.table_of(entry, search.root).rules.storage
        found = search.tables(storage_options(rule, search.root))
        if not found:
            _logger.warning("there is no table at %s", entry.pattern)
        for path in found:
            uri = search.uri(path)
            # Of two patterns that find one table, the first is the one whose rules it has.
            if uri not in tables:
                name = "/".join(part for part in (entry.name, path) if part)
                tables[uri] = policy.table_at(uri, name=name or uri)
    _require_unique_names(tables.values())
    return tuple(tables.values())


class _Search:
    """The tables below the root of one pattern."""

    def __init__(self, entry: TableEntry, parallel: int) -> None:
        assert entry.pattern is not None
        self._entry = entry
        self._pattern = Pattern(entry.pattern)
        self._parallel = parallel
        self.root = self._pattern.root

    def uri(self, path: str) -> str:
        return str(Address.parse(self.root).join(path)) if path else self.root

    def tables(self, storage_options: Mapping[str, str]) -> list[str]:
        """The paths of its tables, relative to the root, in their order."""
        store = open_store(self.root, storage_options)
        try:
            return sorted(path for path in self._logs(store) if self._entry.covers(self.uri(path)))
        except DeltaMaintenanceError as error:
            raise error.located(table=self.root) from error.__cause__
        finally:
            store.close()

    def _logs(self, store: Store) -> Iterator[str]:
        """Folders with a log in them."""
        first = store.list_level()
        if first is None:
            yield from _logs_in_tree(store)
            return
        with ThreadPoolExecutor(self._parallel) as pool:
            level, listed = [""], [first]
            while level:
                deeper: list[str] = []
                for path, entries in zip(level, listed, strict=True):
                    folders = [folder for folder in _folders(entries) if folder != path]
                    log = f"{path}/{LOG_DIRECTORY}" if path else LOG_DIRECTORY
                    if log in folders:
                        yield path
                    else:
                        deeper.extend(folder for folder in folders if self._leads_on(folder))
                level = sorted(deeper)
                listed = list(pool.map(store.list_level, level))

    def _leads_on(self, folder: str) -> bool:
        hidden = folder.rpartition("/")[2].startswith((".", "_"))
        return (
            not hidden
            and self._pattern.leads_on(folder)
            and not self._entry.excludes(self.uri(folder))
        )


def _folders(entries: pa.Table) -> list[str]:
    chosen = entries.filter(pc.equal(entries["kind"], int(EntryKind.DIRECTORY)))
    paths: list[str] = chosen["path"].to_pylist()
    return paths


def _logs_in_tree(store: Store) -> Iterator[str]:
    """The same on a store that can only list everything: its folders are those that files name."""
    found: set[str] = set()
    for batch in store.list_tree():
        logs = batch.filter(pc.match_substring_regex(batch["path"], _IN_LOG))
        tables = pc.replace_substring_regex(logs["path"], rf"(^|/){LOG_DIRECTORY}/.*$", "")
        found.update(pc.unique(tables).to_pylist())
    outermost: str | None = None
    for path in sorted(found, key=lambda path: path.split("/") if path else []):
        nested = outermost is not None and (not outermost or path.startswith(f"{outermost}/"))
        if not nested:
            outermost = path
            yield path


_IN_LOG = rf"^(?:[^._/][^/]*/)*{LOG_DIRECTORY}/"
"""No folder on the way there is hidden."""


def _require_unique_names(tables: Iterable[PolicyTable]) -> None:
    named: dict[str, str] = {}
    for table in tables:
        other = named.setdefault(table.name, table.uri)
        if other != table.uri:
            raise InvalidRequestError(
                f"the tables {other} and {table.uri} are both named {table.name}",
                remedy="give the patterns names, which go before those of their tables",
            )
