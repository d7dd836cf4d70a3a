"""Logs in which some removes miss their files, with the files that should not be live."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.tables import actions as log
from tests.support.tables.actions import Action, deletion_vector, dv_id
from tests.support.tables.table_builder import TableBuilder

SPELLINGS: dict[str, Callable[[str], str]] = {
    "blanks": lambda path: path.replace("%20", " "),
    "encoded once more": lambda path: path.replace("%", "%25"),
    "tilde": lambda path: path.replace("~", "%7E"),
    "plus": lambda path: path.replace("+", "%2B"),
    "decomposed": lambda path: unicodedata.normalize("NFD", path),
    "lower case": lambda path: path.replace("%C3%9F", "%c3%9f"),
}
STEPS = (
    *("append", "delete", "miss", "again", "statistics", "restore", "compact", "remove"),
    "checkpoint",
)
NAME = "p=a%20b~c+ü%C3%9F/f"


@dataclass
class DoubledLog:
    """Writes commits of correct writers, and of one whose removes miss their files."""

    builder: TableBuilder = field(default_factory=TableBuilder)
    live: dict[tuple[str, str | None], Action] = field(default_factory=dict)
    """The adds by key."""
    doubled: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """For each file that should not be live, the version that should have removed it."""
    count: int = 0

    def __post_init__(self) -> None:
        self.builder.commit([log.features("deletionVectors"), log.metadata()])

    def step(self, name: str, number: int) -> None:
        """Makes one commit, if there is a file for it; `number` chooses the file."""
        if name == "checkpoint":
            self.builder.checkpoint()
            return
        key = sorted(self.live, key=str)[number % len(self.live)] if self.live else None
        lines = self.append() if key is None or name == "append" else self.change(name, key, number)
        self.builder.commit([log.commit_info(), *lines])

    def append(self) -> list[Action]:
        self.count += 1
        return [self.add(log.add(f"{NAME}{self.count}", stats='{"numRecords": 9}'))]

    def add(self, action: Action) -> Action:
        self.live[self.key(action)] = action
        return action

    @staticmethod
    def key(action: Action) -> tuple[str, str | None]:
        value = action["add"]
        return value["path"], dv_id(value)

    def remove(self, key: tuple[str, str | None], **fields: Any) -> Action:
        add = self.live[key]["add"]
        return log.remove(add["path"], dv=add.get("deletionVector"), **fields)

    def gone(self, key: tuple[str, str | None]) -> Action:
        action = self.remove(key)
        del self.live[key]
        self.doubled.pop(key, None)
        return action

    def change(self, name: str, key: tuple[str, str | None], number: int) -> list[Action]:
        add = self.live[key]["add"]
        match name:
            case "remove":
                return [self.gone(key)]
            case "compact":
                return [self.gone(key), *self.append()]
            case "delete":
                self.count += 1
                vector = deletion_vector(f"{self.count:020d}")
                return [self.gone(key), self.add({"add": add | {"deletionVector": vector}})]
            case "again":
                self.doubled.pop(key, None)
                return [self.add({"add": add | {"dataChange": True}})]
            case "statistics":
                # Added again by a writer that changes no rows.
                return [{"add": add | {"dataChange": False}}]
            case "restore":
                if "deletionVector" not in add:
                    return self.append()
                restored = {k: v for k, v in add.items() if k != "deletionVector"}
                return [self.gone(key), self.add({"add": restored})]
        return self.miss(key, number)

    def miss(self, key: tuple[str, str | None], number: int) -> list[Action]:
        """A remove that names the file in another way, and a new file."""
        add = self.live[key]["add"]
        respell = list(SPELLINGS.values())[number % len(SPELLINGS)]
        vector = add.get("deletionVector")
        path = add["path"] if vector is not None and number % 2 else respell(add["path"])
        if path == add["path"] or number % 3:
            vector = None
        lines = [log.remove(path, dv=vector, dataChange=bool(number % 5)), *self.append()]
        self.doubled.setdefault(key, self.builder.version + 1)
        return lines


def play(steps: Sequence[tuple[str, int]]) -> DoubledLog:
    """Returns the log of some steps."""
    made = DoubledLog()
    for name, number in steps:
        made.step(name, number)
    return made
