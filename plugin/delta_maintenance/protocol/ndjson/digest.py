"""Summarising a commit from the first bytes of its file.

For watchers of commits, which need to know whether rows changed, but not which ones. The contents
of `commitInfo` are free-form ("Commit Provenance Information"), so the actions decide where
possible, not the name of the operation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from delta_maintenance.protocol.ndjson.split import parse_other_lines, split

PREFIX_BYTES = 64 << 10
"""Enough of a commit in nearly all cases, because writers put non-file actions before the files."""

ENGINE = "delta-maintenance/"
"""The prefix of `engineInfo` in the commits of this library."""

MAINTENANCE = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "COMPUTE STATS",
        "FSCK",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
    }
)
"""Operations that add and remove files without changing rows, whatever their actions contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDigest:
    """A summary of one commit."""

    version: int
    operation: str | None = None
    """The name of the operation, or None if it was not recorded or not read."""
    engine: str | None = None
    changes_data: bool | None = None
    """Whether any file action has `dataChange`, or None if that is unknown."""
    changes_protocol: bool = False
    """Whether the part that was read contains a `protocol` action."""
    configuration: Mapping[str, str] | None = None
    """The table properties of a `metaData` action, or None if none was read."""
    whole: bool
    """Whether the complete commit was read."""

    @property
    def is_maintenance(self) -> bool | None:
        """Whether the rows of the table are unchanged, or None if that is unknown."""
        if self.operation in MAINTENANCE or (self.engine or "").startswith(ENGINE):
            return True
        return None if self.changes_data is None else not self.changes_data


def digest_commit(data: bytes, *, version: int, name: str, whole: bool) -> CommitDigest:
    """The digest of a commit.

    `data` is the complete text of the commit or, without `whole`, its beginning. `name` is the file
    name for messages. Raises `CorruptTableError` if the text is not that of a commit.
    """
    if not whole:
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            return CommitDigest(version=version, whole=False)
    text = split(name, data)
    actions, files = parse_other_lines(text, commit_info=True)
    info, metadata = actions.commit_info, actions.metadata
    engine = info.values.get("engineInfo") if info is not None else None
    lines = (*(run.text for run in text.file_lines), *files)
    changes = any(_CHANGES_DATA.search(line) for line in lines)
    return CommitDigest(
        version=version,
        operation=info.operation if info is not None else None,
        engine=engine if isinstance(engine, str) else None,
        changes_data=changes if changes or whole else None,
        changes_protocol=actions.protocol is not None,
        configuration=metadata.configuration if metadata is not None else None,
        whole=whole,
    )


# In a JSON string these quotes would be escaped, so a match is a key.
_CHANGES_DATA = re.compile(rb'"dataChange"\s*:\s*true')
