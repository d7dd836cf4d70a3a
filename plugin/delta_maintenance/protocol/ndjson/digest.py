"""What a commit is about, told from the first bytes of its file.

For those who wait for commits: they want to know whether rows came or went, not which. "Commit
Provenance Information" is free-form, so that no name of an operation is relied on where the actions
themselves tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from delta_maintenance.protocol.ndjson.split import parse_other_lines, split

HEAD_BYTES = 64 << 10
"""As much of a commit as nearly always tells: writers put the other actions before the files."""

ENGINE = "delta-maintenance/"
"""How `engineInfo` begins in the commits of this library."""

MAINTENANCE = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "FSCK",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
    }
)
"""Operations that move or forget files and leave the rows alone, whatever their actions say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDigest:
    """One commit in short."""

    version: int
    operation: str | None = None
    """The name of the operation; None where the writer left none, or where it was not read."""
    engine: str | None = None
    changes_data: bool | None = None
    """Whether a file came or went with its rows; None where what was read does not tell."""
    changes_protocol: bool = False
    """Whether a `protocol` action was read."""
    configuration: Mapping[str, str] | None = None
    """The table properties of a `metaData` action; None where none was read."""
    whole: bool
    """Whether all of the commit was read."""

    @property
    def is_maintenance(self) -> bool | None:
        """Whether the rows of the table are the same as before; None where that is not known."""
        if self.operation in MAINTENANCE or (self.engine or "").startswith(ENGINE):
            return True
        return None if self.changes_data is None else not self.changes_data


def digest_commit(data: bytes, *, version: int, name: str, whole: bool) -> CommitDigest:
    """The digest of a commit's text, of which `data` is all or, without `whole`, the beginning.

    `name` is that of the file, for messages. `CorruptTableError` for what is no text of a commit.
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


# Quotes inside of text have a backslash before them: this is a key.
_CHANGES_DATA = re.compile(rb'"dataChange"\s*:\s*true')
