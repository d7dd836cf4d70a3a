"""Finding the tables that match the patterns of a policy, and opening them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError, failure_of
from delta_maintenance.operations.core.policy_values import resolve
from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.policies.definition.policy import Pattern, Policy, PolicyTable, TableEntry
from delta_maintenance.policies.definition.rules import StorageRule
from delta_maintenance.policies.models import Assessment
from delta_maintenance.storage import Store, open_store
from delta_maintenance.storage.core.listing import EntryKind
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.table import Table, open_table

_logger = logging.getLogger(__name__)

_PARALLEL = 16
_PATTERNS_AT_ONCE = 8
_IN_LOG = rf"^(?:[^._/][^/]*/)*{LOG_DIRECTORY}/"
"""Neither the folder nor one above it is hidden."""

StorageOptions = Callable[[StorageRule], Mapping[str, str]]
"""Returns the storage options that a rule refers to."""
OptionsAt = Callable[[StorageRule, str], Mapping[str, str]]
"""Returns the storage options that a rule refers to, for the store at an address."""


def _environment_options_at(rule: StorageRule, root: str) -> Mapping[str, str]:
    return environment_options(rule)


@dataclass(frozen=True, slots=True)
class UnlistedPattern:
    """A pattern of a policy whose tables could not be listed, with the error."""

    pattern: str
    error: DeltaMaintenanceError

    def assessment(self, *, now: datetime) -> Assessment:
        """The failure as an assessment, named after the pattern."""
        return Assessment(
            subject="pattern",
            name=self.pattern,
            uri=self.pattern,
            assessed_at=now,
            status="failed",
            problem=str(self.error),
            exit_status=self.error.exit_status,
            retryable=self.error.retryable,
        )


@dataclass(frozen=True, slots=True)
class Discovery:
    """The tables of a policy, and the patterns that could not be listed."""

    tables: tuple[PolicyTable, ...]
    """The named tables in the order of the policy, then the discovered ones, by pattern
    and path.
    """
    unlisted: tuple[UnlistedPattern, ...] = ()
    listed: tuple[str, ...] = ()
    """The patterns that could not be listed."""

    def keep_failures(self, store: AssessmentStore, *, now: datetime) -> tuple[Assessment, ...]:
        """Saves an entry for each pattern that failed, and removes those of all others."""
        failures = tuple(failed.assessment(now=now) for failed in self.unlisted)
        for failure in failures:
            store.save(failure)
        for pattern in self.listed:
            store.forget(pattern)
        return failures

    def complete(self) -> tuple[PolicyTable, ...]:
        """The tables; raises the first error if a pattern could not be listed."""
        for failed in self.unlisted:
            raise failed.error
        return self.tables


def discover(
    policy: Policy,
    *,
    storage_options: OptionsAt = _environment_options_at,
    parallel: int = _PARALLEL,
    pauses: Sequence[float] = (2.0, 8.0),
    sleep: Callable[[float], object] = time.sleep,
) -> Discovery:
    """Finds all tables of the policy.

    Lists the folders below the fixed beginning of each pattern, level by level. The search does not
    enter tables, links, or folders whose names begin with `.` or `_`. A listing is either complete
    or an error, because an incomplete list cannot be recognised as such.

    A pattern that cannot be listed does not affect the others. Temporary errors are retried after
    each of the `pauses`, in seconds; all others are final. If two tables have the same name, the
    second pattern fails.
    """
    searches = [_Search(policy, entry, parallel) for entry in policy.patterns]
    results = _listed(searches, storage_options)
    for pause in pauses:
        again = [
            number
            for number, found in enumerate(results)
            if isinstance(found, DeltaMaintenanceError) and found.retryable
        ]
        if not again:
            break
        sleep(pause)
        repeated = _listed([searches[number] for number in again], storage_options)
        for number, found in zip(again, repeated, strict=True):
            results[number] = found
    tables = {table.uri: table for table in policy.named_tables}
    names = {table.name: table.uri for table in tables.values()}
    unlisted = []
    for search, found in zip(searches, results, strict=True):
        if isinstance(found, DeltaMaintenanceError):
            unlisted.append(UnlistedPattern(search.pattern, found))
            continue
        # A table that matches several patterns has the rules of the first one.
        new = {uri: search.named(path) for path in found if (uri := search.uri(path)) not in tables}
        clash = next((uri for uri, name in new.items() if names.get(name, uri) != uri), None)
        if clash is not None:
            error = _same_name(new[clash], names[new[clash]], clash)
            unlisted.append(UnlistedPattern(search.pattern, error))
            continue
        names |= {name: uri for uri, name in new.items()}
        tables |= {uri: policy.table_at(uri, name=name) for uri, name in new.items()}
    failed = {each.pattern for each in unlisted}
    listed = tuple(each.pattern for each in searches if each.pattern not in failed)
    return Discovery(tuple(tables.values()), tuple(unlisted), listed)


def _listed(
    searches: Sequence[_Search], storage_options: OptionsAt
) -> list[list[str] | DeltaMaintenanceError]:
    """The paths that each search finds, or the error that ended it."""
    if not searches:
        return []
    with ThreadPoolExecutor(min(len(searches), _PATTERNS_AT_ONCE)) as pool:
        return list(pool.map(lambda search: search.attempt(storage_options), searches))


def _same_name(name: str, first: str, second: str) -> DeltaMaintenanceError:
    return InvalidRequestError(
        f"the tables {first} and {second} are both named {name}",
        remedy="give the patterns names, which go before those of their tables",
    )


class _Search:
    """The tables below the root of one pattern."""

    def __init__(self, policy: Policy, entry: TableEntry, parallel: int) -> None:
        assert entry.pattern is not None
        self._policy = policy
        self._entry = entry
        self._pattern = Pattern(entry.pattern)
        self._parallel = parallel
        self.pattern = entry.pattern
        self.root = self._pattern.root

    def uri(self, path: str) -> str:
        """The address of the table at a path below the root."""
        return str(Address.parse(self.root).join(path)) if path else self.root

    def named(self, path: str) -> str:
        """The name of that table."""
        return "/".join(part for part in (self._entry.name, path) if part) or self.uri(path)

    def attempt(self, storage_options: OptionsAt) -> list[str] | DeltaMaintenanceError:
        """The paths of its tables, relative to the root, sorted; or the error."""
        try:
            # The storage rule of the pattern configures access to its root.
            rule = self._policy.table_of(self._entry, self.root).rules.storage
            found = self._tables(storage_options(rule, self.root))
        except Exception as error:
            return failure_of(error, where=self.pattern).located(table=self.root)
        if not found:
            _logger.warning("there is no table at %s", self.pattern)
        return found

    def _tables(self, storage_options: Mapping[str, str]) -> list[str]:
        store = open_store(self.root, storage_options)
        try:
            return sorted(path for path in self._logs(store) if self._entry.covers(self.uri(path)))
        finally:
            store.close()

    def _logs(self, store: Store) -> Iterator[str]:
        """Folders that contain a log."""
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
    """Like `_logs`, for stores that can only list everything: derives the folders from the
    files.
    """
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


def environment_options(
    rule: StorageRule, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the options of a rule, with references to the environment resolved.

    Raises `InvalidRequestError` for an unset variable, and for a connection, because only
    orchestrators have connections.
    """
    if rule.connection is not None:
        raise InvalidRequestError(
            f"only an orchestrator can resolve the connection {rule.connection!r}",
            remedy="run the policy in an orchestrator, or give storage options in the policy",
        )
    return resolved_options(rule, environment)


def resolved_options(
    rule: StorageRule, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns only the options of a rule, for callers that resolve its connection."""
    values = os.environ if environment is None else environment
    return {name: resolve(value, values) for name, value in rule.options.items()}


def open_policy_table(
    table: PolicyTable, storage_options: StorageOptions = environment_options
) -> Table:
    """Opens the table at its address. Nothing is read yet."""
    return open_table(table.uri, storage_options(table.rules.storage))
