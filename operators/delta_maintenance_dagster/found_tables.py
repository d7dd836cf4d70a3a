"""The tables that patterns and catalogs find: the state of the component between its loads."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dagster._core.storage.defs_state.base import DefsStateStorage
from dagster.components.utils.defs_state import DefsStateConfig
from dagster.components.utils.project_paths import get_local_state_path
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.definition.policy import Policy, PolicyTable

if TYPE_CHECKING:
    from delta_maintenance.policies.catalogs import OptionsAt

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FoundTables(Record):
    """What a refresh found. All loads until the next one are built from it."""

    tables: tuple[PolicyTable, ...] = ()
    kept: tuple[str, ...] = ()
    """The names of tables that were not found again, because their catalog or pattern failed: they
    are as in the refresh before."""
    problems: tuple[str, ...] = ()
    """The catalogs, their parts, and the patterns that failed; one line each."""


def find_tables(
    policy: Policy, storage_options: "OptionsAt", before: FoundTables | None
) -> FoundTables:
    """Finds all tables of a policy. What cannot be listed keeps its tables of the refresh before.

    Failures are logged. `InvalidRequestError` for a mistake in the policy or in the environment.
    """
    # Imported here because both load PyArrow, and loads of definitions do not need it.
    from delta_maintenance.policies.discovery import discover
    from delta_maintenance.policies.session import kept_tables

    discovery = discover(policy, storage_options=storage_options)
    if before is not None:
        patterns = (pattern for table in before.tables for pattern in table.rules_from)
        discovery = discovery.without_tables_of(frozenset(patterns))
    for unlisted in discovery.unlisted:
        if isinstance(unlisted.error, InvalidRequestError):
            raise unlisted.error
    retained_tables = kept_tables(policy, discovery, before.tables if before is not None else ())
    problems = tuple(f"{unlisted.pattern}: {unlisted.error}" for unlisted in discovery.unlisted)
    for problem in problems:
        _log.warning("%s", problem)
    for line in discovery.warnings():
        _log.warning("%s", line)
    if problems:
        then = "are as in the last refresh" if before is not None else "are missing until a refresh"
        _log.warning("the tables of these %s; %d tables are kept", then, len(retained_tables))
    return FoundTables(
        tables=(*discovery.tables, *retained_tables.values()),
        kept=tuple(sorted(retained_tables)),
        problems=problems,
    )


def last_state(config: DefsStateConfig, project_root: Path) -> str | None:
    """Returns the state of the last refresh; None if there is none.

    Dagster deletes a local state before a refresh, so call this first. It keeps the state of a code
    server in its memory, where a new server does not find it.
    """
    if config.management_type == DefsStateManagementType.LOCAL_FILESYSTEM:
        path = get_local_state_path(config.key, project_root)
        return path.read_text() if path.is_file() else None
    storage = DefsStateStorage.get()
    if config.management_type != DefsStateManagementType.VERSIONED_STATE_STORAGE or storage is None:
        return None
    version = storage.get_latest_version(config.key)
    if version is None:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        storage.download_state_to_path(config.key, version, path)
        return path.read_text()


def known(text: str | None) -> FoundTables | None:
    """Parses the state of an earlier refresh; None if it is of another version of this package."""
    try:
        return None if text is None else FoundTables.from_json(json.loads(text))
    except (ValueError, InvalidRequestError):
        _log.warning("the state of the last refresh cannot be read and is not used")
        return None
