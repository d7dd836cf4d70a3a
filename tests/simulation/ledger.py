"""The commits of a table, and what each of them must do.

The ledger shares no code with the library: it records commits as they arrive and replays them with
dicts, one action at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.properties.model import State
from tests.support.tables.actions import Action, dv_id

SKEW_MS = 120_000
"""The most that the clock of an actor may be wrong."""
MARK = "delta.rowTracking"


@dataclass(frozen=True)
class Effect:
    """The effect of a commit on the rows of the table, as intended by its writer."""

    inserted: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class Ledger:
    """All commits, and the state after each. Every commit is checked when it arrives."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.states: list[State] = []
        self.times_ms: list[int] = []
        """The time when the store received each commit."""
        self.operations: list[str] = []
        self.owners: dict[str, int] = {}
        """The version of each transaction id."""
        self.tasks: dict[str, int] = {}
        """The version of each operation id that stands for one commit."""
        self.rows_of: dict[str, frozenset[str]] = {}
        """The rows of each data file, by its path in the log."""
        self.deleted_by: dict[str, frozenset[str]] = {}
        """The rows that each deletion vector removes, by its unique ID."""
        self.effects: dict[str, Effect] = {}
        """Declared by writers before they commit, by transaction ID. Other commits move no row."""
        self.row_ids: dict[str, tuple[int, int]] = {}
        """The base row ID and commit version of each path, while row tracking is enabled."""
        self.overwritten: dict[str, int] = {}
        """The version of each transaction ID whose commit another one replaced. From the first one
        on, files and rows need not be as their writers intended."""
        self._given: list[tuple[int, int]] = []
        self._mark = -1
        self.in_commit_ms: int | None = None

    @property
    def latest(self) -> State:
        return self.states[-1]

    def rows(self, state: State) -> frozenset[str]:
        """The rows of the table; each is in one file."""
        rows = self.rows_of_files(state)
        assert len(rows) == len(set(rows)), "a row stands in two live files"
        return frozenset(rows)

    def rows_of_files(self, state: State) -> list[str]:
        """The rows of all live files, also where files have rows in common."""
        rows: list[str] = []
        for path, vector in state.live:
            rows += self.rows_of[path] - self.deleted_by.get(vector or "", frozenset())
        return rows

    def take(self, version: int, text: bytes, *, now_ms: int) -> None:
        assert version == len(self.states), f"version {version} was committed out of its turn"
        lines = [json.loads(line) for line in text.splitlines()]
        info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
        before = self.latest if self.states else State()
        after = State(
            before.protocol,
            before.metadata,
            dict(before.txns),
            dict(before.domains),
            dict(before.live),
            dict(before.tombstones),
        )
        after.apply(lines)
        adds = [line["add"] for line in lines if "add" in line]
        removes = [line["remove"] for line in lines if "remove" in line]
        operation = info["operation"]
        self._own(version, info)
        if not self.overwritten:
            if version:
                self._judge_protocol(before, after, operation)
                self._judge_files(before, after, removes, info)
            self._judge_time(before, after, lines[0], now_ms)
            self._judge_row_ids(version, after, adds)
        self.texts.append(text)
        self.states.append(after)
        self.times_ms.append(now_ms)
        self.operations.append(operation)

    def overwrite(self, version: int, text: bytes, *, now_ms: int) -> None:
        """Takes a commit in the place of another one, and again those that follow it."""
        later = list(zip(self.texts[version + 1 :], self.times_ms[version + 1 :], strict=True))
        for by_version in (self.texts, self.states, self.times_ms, self.operations):
            del by_version[version:]
        gone = {name: at for name, at in self.owners.items() if at >= version}
        self.overwritten |= {name: at for name, at in gone.items() if at == version}
        self.owners = {name: at for name, at in self.owners.items() if at < version}
        self.tasks = {name: at for name, at in self.tasks.items() if at < version}
        self.take(version, text, now_ms=now_ms)
        for later_text, later_ms in later:
            self.take(len(self.states), later_text, now_ms=later_ms)

    def intended_rows(self) -> frozenset[str]:
        """The rows that the remaining commits inserted, without those that they deleted."""
        rows = frozenset[str]()
        for name in sorted(self.owners, key=self.owners.__getitem__):
            effect = self.effects.get(name, Effect())
            rows = (rows | effect.inserted) - effect.deleted
        return rows

    def _own(self, version: int, info: Mapping[str, Any]) -> None:
        owner = self.owners.setdefault(info["txnId"], version)
        assert owner == version, f"versions {owner} and {version} are one transaction"
        task = info.get("operationId", "")
        # Files that lost their row IDs in the meantime may get others from the same task.
        if task.startswith("task") and "/batch" not in task:
            first = self.tasks.setdefault(task, version)
            assert first == version, f"versions {first} and {version} are the same task"

    def _judge_protocol(self, before: State, after: State, operation: str) -> None:
        assert before.protocol and after.protocol
        assert before.metadata and after.metadata
        assert before.metadata["id"] == after.metadata["id"]
        if operation == "DROP FEATURE":
            return
        for name in ("minReaderVersion", "minWriterVersion"):
            assert after.protocol[name] >= before.protocol[name], "the protocol was lowered"
        # The only legacy versions here are 1 and 2.
        implied: Mapping[str, tuple[str, ...]]
        implied = {"readerFeatures": (), "writerFeatures": ("appendOnly", "invariants")}
        for name in implied:
            listed = set(before.protocol.get(name, implied[name]))
            lost = listed - set(after.protocol.get(name, listed))
            assert not lost, f"{operation} lost the features {lost}"

    def _judge_files(
        self, before: State, after: State, removes: list[Action], info: Mapping[str, Any]
    ) -> None:
        if info["operation"] != "Deletion Vector Tombstones":
            for remove in removes:
                key = remove["path"], dv_id(remove)
                assert key in before.live, f"{key} was removed, and was not there"
        paths = [path for path, _ in after.live]
        assert len(paths) == len(set(paths)), "a path is live with two deletion vectors"
        effect = self.effects.get(info["txnId"], Effect())
        rows = self.rows(after)
        wanted = (self.rows(before) | effect.inserted) - effect.deleted
        assert rows == wanted, f"rows lost: {wanted - rows}, rows too many: {rows - wanted}"

    def _judge_time(self, before: State, after: State, first: Action, now_ms: int) -> None:
        previous = self.in_commit_ms
        self.in_commit_ms = None
        if is_on(after, "delta.enableInCommitTimestamps") and has(after, "inCommitTimestamp"):
            self.in_commit_ms = first["commitInfo"]["inCommitTimestamp"]
            if previous is None and self.times_ms:
                previous = self.times_ms[-1]
            assert previous is None or self.in_commit_ms > previous, "time stood still"
            latest = max(now_ms + SKEW_MS, (previous or 0) + 1)
            assert self.in_commit_ms <= latest, f"{self.in_commit_ms - latest} ms ahead of time"

    def _judge_row_ids(self, version: int, after: State, adds: list[Action]) -> None:
        if not has(after, "rowTracking"):
            self.row_ids, self._given, self._mark = {}, [], -1
            return
        suspended = is_on(after, "delta.rowTrackingSuspended")
        for add in adds:
            base, since = add.get("baseRowId"), add.get("defaultRowCommitVersion")
            if suspended and base is None:
                self.row_ids.pop(add["path"], None)
                continue
            assert base is not None and since is not None, f"{add['path']} has no row IDs"
            if add["path"] in self.row_ids:
                assert self.row_ids[add["path"]] == (base, since), "row IDs changed"
                continue
            assert since == version, "new row IDs are of another version"
            end = base + len(self.rows_of[add["path"]])
            clash = [(b, e) for b, e in self._given if base < e and b < end]
            assert not clash, f"row IDs {base} to {end} were given before: {clash}"
            self._given.append((base, end))
            self.row_ids[add["path"]] = base, since
        if MARK in after.domains:
            mark = json.loads(after.domains[MARK])["rowIdHighWaterMark"]
            assert mark >= self._mark, "the high-water mark fell"
            self._mark = mark
        assert self._mark >= max((end - 1 for _, end in self._given), default=-1)
        if is_on(after, "delta.enableRowTracking"):
            lacking = [key for key, add in after.live.items() if add.get("baseRowId") is None]
            assert not lacking, f"row tracking is enabled, and {lacking} have no row IDs"


def is_on(state: State, name: str) -> bool:
    return bool((state.metadata or {})["configuration"].get(name) == "true")


def has(state: State, feature: str) -> bool:
    """Whether the protocol lists the feature."""
    return feature in (state.protocol or {}).get("writerFeatures", ())
