"""Checks whether a physical name was ever reused, over all versions ("Field Path").

The values of a dropped column stay in the data files. A new column with the same physical name
would show them again.
"""

from __future__ import annotations

from collections.abc import Iterator

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.log_history import LogHistory
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.delta_log.file_names import commit_name
from delta_maintenance.protocol.schema.column_mapping import COLUMN_ID, PHYSICAL_NAME
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema, walk
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

Path = tuple[str, ...]


def check_mapping(history: LogHistory, findings: Findings) -> None:
    """Finds physical paths that belonged to another column in an earlier version of the history.

    Columns are identified by their IDs. If column mapping was off in between, all files were
    rewritten, and earlier names no longer matter.
    """
    known: dict[Path, object] = {}
    changed = {fact.version for fact in history.commits if fact.actions.metadata is not None}
    for version, state in history.states({history.first, *changed}):
        if state.protocol is None or state.metadata is None:
            continue
        columns = dict(_columns(state.protocol, state.metadata))
        if not columns:
            known.clear()
        for path, number in columns.items():
            before = known.setdefault(path, number)
            if before != number:
                findings.add(
                    "reused-physical-name",
                    f"the columns with the IDs {before} and {number} have the same physical name "
                    f"{'.'.join(path)}",
                    version=version,
                    path=f"{LOG_DIRECTORY}/{commit_name(version)}",
                )
        known |= columns


def _columns(protocol: Protocol, metadata: Metadata) -> Iterator[tuple[Path, object]]:
    """Yields the physical path of each mapped column, with its ID."""
    try:
        if column_mapping_mode(protocol, metadata.configuration) == "none":
            return
        schema = parse_schema(metadata.schema_string or "")
    except (CorruptTableError, UnsupportedFeatureError):
        # The check of the latest state reports this, if it is the newest version.
        return
    physical: dict[Path, Path] = {(): ()}
    for path, field in walk(schema):
        name = field.metadata.get(PHYSICAL_NAME)
        above = next(path[:at] for at in range(len(path) - 1, -1, -1) if path[:at] in physical)
        physical[path] = (*physical[above], *path[len(above) : -1], str(name))
        if name is not None and COLUMN_ID in field.metadata:
            yield physical[path], field.metadata[COLUMN_ID]
