"""The rows of a table that many concurrent writers change, and ledgers of their actions.

Each writer records each action, with the IDs of the rows and whether it was committed. The ledgers
determine the rows that the table must have in the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

PARTITIONS = 4
BLOCK = 40
"""The number of rows of one append. They have consecutive IDs and share a partition."""
APPENDER_IDS = 10_000_000
"""The IDs of an appender begin at its number times this."""
MERGED_IDS = 900_000_000
"""The IDs of rows inserted by the merger begin here."""

Kind = Literal["append", "delete", "merge", "optimize"]
Outcome = Literal["committed", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One transaction of a writer."""

    writer: str
    kind: Kind
    outcome: Outcome
    ids: tuple[int, ...] = ()
    """The rows that it appended, deleted or merged."""
    value: int = 0
    """The new value of merged rows."""
    fates: dict[str, int] = field(default_factory=dict)
    """The number of bins of an `optimize` for each fate."""
    copied: dict[str, int] = field(default_factory=dict)
    """The same, of bins with copied row groups."""
    problem: str = ""


class Ledger:
    """The ledger of one writer, in a file that other processes may read."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.writer = writer
        self._file = (folder / f"{writer}.jsonl").open("a", buffering=1)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def note(
        self,
        kind: Kind,
        outcome: Outcome,
        *,
        ids: Iterable[int] = (),
        value: int = 0,
        fates: dict[str, int] | None = None,
        copied: dict[str, int] | None = None,
        problem: str = "",
    ) -> None:
        """Adds an action."""
        act = Act(
            writer=self.writer,
            kind=kind,
            outcome=outcome,
            ids=tuple(ids),
            value=value,
            fates=fates or {},
            copied=copied or {},
            problem=" ".join(problem.split())[:300],
        )
        self._file.write(json.dumps(asdict(act)) + "\n")


def acts(folder: Path) -> Iterator[Act]:
    """Yields all actions, those of one writer in order. A line that is being written is skipped."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                entry = json.loads(line)
                yield Act(**{**entry, "ids": tuple(entry["ids"])})


def partition_of(row: int) -> str:
    """The partition of a row."""
    return str(row // BLOCK % PARTITIONS)


def text_of(row: int) -> str:
    """The text of a row, which is incompressible."""
    return hashlib.blake2b(str(row).encode(), digest_size=32).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The rows that the table must have, according to the ledgers."""

    values: dict[int, int]
    """The value of each required row."""
    unsure: frozenset[int]
    """Rows of acts with an unknown outcome; they may be there or not."""


def expected(folder: Path) -> Expected:
    """Returns the rows after all actions.

    Rows are deleted by one writer each, and after they were appended; only the merger changes
    values. The order of actions of different writers therefore does not matter.
    """
    values: dict[int, int] = {}
    unsure: set[int] = set()
    everything = list(acts(folder))
    for act in everything:
        if act.outcome == "unknown":
            unsure.update(act.ids)
        elif act.outcome == "committed" and act.kind == "append":
            values.update(dict.fromkeys(act.ids, 0))
    for act in everything:
        if act.outcome == "committed" and act.kind == "merge":
            values.update(dict.fromkeys(act.ids, act.value))
    for act in everything:
        if act.outcome == "committed" and act.kind == "delete":
            for row in act.ids:
                values.pop(row, None)
    return Expected(values=values, unsure=frozenset(unsure))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """Rows of the table that differ from the ledgers."""

    lost: tuple[int, ...]
    revived: tuple[int, ...]
    doubled: tuple[int, ...]
    changed: tuple[int, ...]
    """Rows with another value, text or partition."""


def compared(wanted: Expected, found: Iterable[tuple[int, int, str, str]]) -> Wrong:
    """Returns the differences. Rows are given as ID, value, text and partition."""
    seen: set[int] = set()
    revived, doubled, changed = [], [], []
    for row, value, text, partition in found:
        if row in seen:
            doubled.append(row)
        seen.add(row)
        if row in wanted.unsure:
            continue
        if row not in wanted.values:
            revived.append(row)
        elif (value, text, partition) != (wanted.values[row], text_of(row), partition_of(row)):
            changed.append(row)
    lost = sorted(wanted.values.keys() - seen - wanted.unsure)
    return Wrong(
        lost=tuple(lost), revived=tuple(revived), doubled=tuple(doubled), changed=tuple(changed)
    )
