"""A model of action reconciliation, simple enough to be evidently correct: dicts, one action at a
time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta_maintenance.table.read import Snapshot
from tests.support.tables.actions import Action, dv_id

Key = tuple[str, str | None]
"""A logical file: its path and the unique id of its deletion vector."""


@dataclass
class State:
    """The actions in effect after some commits. Files are the objects of their actions, without
    nulls."""

    protocol: Action | None = None
    metadata: Action | None = None
    txns: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    live: dict[Key, Action] = field(default_factory=dict)
    tombstones: dict[Key, Action] = field(default_factory=dict)

    def apply(self, commit: Iterable[Action]) -> None:
        """Applies one commit, as a set: the order of its actions does not matter."""
        for action in commit:
            for name, value in action.items():
                self._apply(name, value)

    def _apply(self, name: str, value: Any) -> None:
        match name:
            case "protocol":
                self.protocol = value
            case "metaData":
                self.metadata = value
            case "txn":
                self.txns[value["appId"]] = value["version"]
            case "domainMetadata":
                self.domains.pop(value["domain"], None)
                if not value["removed"]:
                    self.domains[value["domain"]] = value["configuration"]
            case "add" | "remove":
                key = value["path"], dv_id(value)
                self.live.pop(key, None)
                self.tombstones.pop(key, None)
                (self.live if name == "add" else self.tombstones)[key] = _without_nulls(value)


def replay(commits: Sequence[Iterable[Action]]) -> State:
    """The state after these commits, which are those of versions 0, 1, …"""
    state = State()
    for commit in commits:
        state.apply(commit)
    return state


def state_of(snapshot: Snapshot) -> State:
    """The same view of what the library read."""
    state = State(
        protocol=snapshot.protocol.to_json(),
        metadata=snapshot.metadata.to_json(),
        txns=snapshot.txns,
        domains=snapshot.domain_metadata,
    )
    for batch in snapshot.log.scan():
        for files, rows in ((state.live, batch.adds), (state.tombstones, batch.tombstones)):
            for row in rows.to_pylist():
                value = _without_nulls(_with_dicts(row))
                key = value["path"], dv_id(value)
                assert key not in files, f"{key} stands twice"
                files[key] = value
    return state


def _with_dicts(row: Action) -> Action:
    # Arrow gives maps as pairs.
    maps: Action = {name: dict(row[name]) for name in ("partitionValues", "tags") if row.get(name)}
    if row.get("partitionValues") == []:
        maps["partitionValues"] = {}
    return {name: value for name, value in (row | maps).items() if name not in _OWN}


_OWN = ("_commit_version",)


def _without_nulls(value: Any) -> Any:
    # A null and an absent field are the same, but a partition value may be null.
    if not isinstance(value, dict):
        return value
    return {
        name: item if name == "partitionValues" else _without_nulls(item)
        for name, item in value.items()
        if item is not None
    }
