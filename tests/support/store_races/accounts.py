"""The commits of a race: by the account of each writer, and by the log of the table.

Every commit has a mark that its writer chose, by which the log shows whether it landed. Each row is
changed by one writer only, so the acts whose marks are in the log determine the rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from delta_maintenance.storage.core import Store
from tests.support.rewrites.table_rows import actions_of, latest

Outcome = Literal["committed", "failed", "unknown"]
"""`failed` is said only by a writer that knows that nothing was committed."""

RowValues = dict[int, int | None]
"""The new value of each row; None for a deleted row."""


@dataclass(slots=True, kw_only=True)
class Act:
    """One transaction of a writer. Its outcome is unknown until the writer has noted it."""

    writer: str
    kind: str
    mark: str
    rows: RowValues = field(default_factory=dict)
    outcome: Outcome = "unknown"
    version: int | None = None
    """The version that the writer was told, if any."""
    problem: str = ""


class Account:
    """The acts of one writer, in a file that survives the death of its process."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._file = (folder / f"{writer}.acts").open("a", buffering=1)

    def begin(self, kind: str, mark: str, rows: RowValues | None = None) -> None:
        """Notes an act before its first request."""
        self._write({"kind": kind, "mark": mark, "rows": rows or {}})

    def end(
        self, mark: str, outcome: Outcome, *, version: int | None = None, problem: str = ""
    ) -> None:
        """Notes the outcome of an act."""
        text = " ".join(problem.split())[:300]
        self._write({"mark": mark, "outcome": outcome, "version": version, "problem": text})

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")


def read_acts(folder: Path) -> list[Act]:
    """Returns all acts, those of one writer in order. A line that is being written is skipped."""
    acts: dict[str, Act] = {}
    for path in sorted(folder.glob("*.acts")):
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            entry = json.loads(line)
            if "rows" in entry:
                entry["rows"] = {int(row): value for row, value in entry["rows"].items()}
                acts[entry["mark"]] = Act(writer=path.stem, **entry)
            else:
                act = acts[entry["mark"]]
                act.outcome, act.version = entry["outcome"], entry["version"]
                act.problem = entry["problem"]
    return list(acts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommit:
    """One version of the log."""

    version: int
    mark: str
    operation: str


def read_log(store: Store) -> list[LoggedCommit]:
    """Returns all versions from 0 on. Raises `FileNotFoundError` if one is missing."""
    commits = []
    for version in range(latest(store) + 1):
        infos = [a["commitInfo"] for a in actions_of(store, version) if "commitInfo" in a]
        [info] = infos
        # Delta Spark writes its user metadata and deltalake a field; ours is its transaction ID.
        mark = info.get("userMetadata", "").partition(" ")[0] or info.get("mark") or info["txnId"]
        commits.append(LoggedCommit(version=version, mark=mark, operation=info["operation"]))
    return commits


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Where the log contradicts the accounts, one line for each commit."""

    lost: Sequence[str]
    """Acknowledged, and not in the log."""
    doubled: Sequence[str]
    """Twice in the log."""
    moved: Sequence[str]
    """In another version than the one acknowledged."""
    denied: Sequence[str]
    """In the log, although its writer was told that nothing was committed."""
    unaccounted: Sequence[str]
    """In the log, and begun by no writer."""

    def __bool__(self) -> bool:
        return any((self.lost, self.doubled, self.moved, self.denied, self.unaccounted))


def compare(acts: Iterable[Act], commits: Sequence[LoggedCommit]) -> Differences:
    """Returns all differences between the accounts and the log."""
    versions = {commit.mark: commit.version for commit in commits}
    by_mark = {act.mark: act for act in acts}
    landed = [act for mark, act in by_mark.items() if mark in versions]
    return Differences(
        lost=[
            f"{act.writer} {act.kind} {mark} of version {act.version}"
            for mark, act in by_mark.items()
            if act.outcome == "committed" and mark not in versions
        ],
        doubled=[
            f"{mark}, {times} times"
            for mark, times in Counter(commit.mark for commit in commits).items()
            if times > 1
        ],
        moved=[
            f"{act.writer} {act.kind} {act.mark}: {versions[act.mark]} instead of {act.version}"
            for act in landed
            if act.outcome == "committed" and act.version not in (None, versions[act.mark])
        ],
        denied=[
            f"{act.writer} {act.kind} {act.mark}: {act.problem}"
            for act in landed
            if act.outcome == "failed"
        ],
        unaccounted=[
            f"version {commit.version} {commit.operation} {commit.mark}"
            for commit in commits
            if commit.mark not in by_mark
        ],
    )


def expected_rows(acts: Iterable[Act], commits: Iterable[LoggedCommit]) -> dict[int, int]:
    """Returns the value of each row after all acts whose marks are in the log."""
    landed = {commit.mark for commit in commits}
    rows: dict[int, int] = {}
    for act in acts:
        for row, value in act.rows.items() if act.mark in landed else ():
            if value is None:
                rows.pop(row, None)
            else:
                rows[row] = value
    return rows
