"""Reading the commits that other writers made concurrently."""

from __future__ import annotations

from collections.abc import Collection

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.commit.conflicts import ConcurrentCommit
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.log_file import read_listed
from delta_maintenance.table.read.segment import LogEntry

_FIELDS = {
    "add": ("path", "deletionVector", "stats", "baseRowId", "defaultRowCommitVersion"),
    "remove": ("path", "deletionVector"),
}


def read_concurrent_commit(
    store: Store, entry: LogEntry, *, partition_columns: Collection[str]
) -> ConcurrentCommit:
    """The parts of one commit that conflict detection needs, with one request.

    Raises `FileNotFoundError` if the commit file was deleted, and `CorruptTableError` if it cannot
    be read or contains two actions where the protocol allows one: a commit on top of it would have
    to choose between them.
    """
    version = entry.file.version
    assert version is not None
    try:
        text = split(entry.path, read_listed(store, entry.status))
        actions, beside = parse_other_lines(text, commit_info=True)
        if actions.repeated:
            raise CorruptTableError(
                f"the commit contains two actions for {min(actions.repeated)}", file=entry.path
            )
        files = parse_file_actions(
            [FileLines.of(text, beside)],
            keys=MapKeys(partition_columns=frozenset(partition_columns)),
            fields=_FIELDS,
        )
    except CorruptTableError as error:
        raise error.located(table=store.root, version=version, file=entry.path) from None
    return ConcurrentCommit(
        version=version,
        modified_ms=entry.status.modified_ms,
        commit_info=actions.commit_info,
        protocol=actions.protocol,
        metadata=actions.metadata,
        txns=actions.txns,
        domains=actions.domains,
        adds=files.adds,
        removes=files.removes,
    )
