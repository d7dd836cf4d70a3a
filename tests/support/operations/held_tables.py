"""A table whose old files have different holders, and the options that callers can give."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from delta_maintenance import DeltaTable
from delta_maintenance.cli.main import _parser, verbs
from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations.core import AnyOperation, find, flag_fields, known, operations
from delta_maintenance.policies.definition import Policy, PolicyTable
from tests.support.suite.play import some
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago, named_memory

HELD = {"1.parquet", "2.parquet", "3.parquet", "4.parquet"}
"""By a kept version, a clone, and a reader that has read up to version 3."""
COMMITS = {f"{version:020}.json" for version in range(1, 6)}
"""Those that the same holders need."""
ODD: tuple[Any, ...] = (
    *({}, [], "", None, 0, False, True, -1, "0", "false", "no", "none", "null", "P0D", "0 days"),
    *([None], [{}], [""], {"keep": []}, {"keep": [], "readers": [], "clones": []}),
)
"""Values that a caller can give instead of the value of an option."""
ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "false",
    "no",
    "none",
    "null",
    "P0D",
    "0 days",
    "[]",
    "{}",
    "*",
    "=",
)
"""Those of a flag of the command line."""
DELETING = ("vacuum", "clean-log")
"""The operations that delete by age."""
FLAGS = {"allow_short_retention": True, "no_other_writers": True}
Case = tuple[str, dict[str, Any]]
"""An operation and the options that a caller gives it."""


def field_names(record: AnyOperation) -> list[str]:
    """Returns the options that a caller can give as JSON."""
    return [field.name for field in fields(record.options)]


def flag_names(record: AnyOperation) -> list[str]:
    """Returns the options that a method has as arguments."""
    return [field.name for field in flag_fields(record.options)]


def option_cases(names: Callable[[AnyOperation], Iterable[str]] = field_names) -> list[Case]:
    """Returns every option of every operation with every odd value."""
    found: list[Case] = []
    for record in operations():
        found += [
            (record.name, {**record.example, name: value})
            for name in names(record)
            for value in ODD
        ]
    if names is not field_names:
        return found
    found += [(verb, {**FLAGS, "holders": value}) for verb in DELETING for value in ODD]
    found += [
        ("vacuum", {**FLAGS, "retention": "0 days", "foreign_files": True}),
        ("clean-log", {**FLAGS, "log_retention": "0 days"}),
    ]
    return found


def some_cases(cases: Sequence[Case], most: int) -> list[Case]:
    """Returns at most about so many of the cases; half of them of operations that delete by age."""
    deleting = [case for case in cases if case[0] in DELETING]
    others = [case for case in cases if case[0] not in DELETING]
    sure = [case for case in deleting if case[1] == {"holders": {}}]
    sure += [(verb, {}) for verb in DELETING]
    return [*sure, *some(deleting, most // 2), *some(others, most // 2)]


def command_lines(held: HeldTable, policy: Path) -> list[list[str]]:
    """Returns each verb with each of its words as an odd text, beside flags for holders."""
    found: list[list[str]] = []
    of_policies = ("run", "approve", "assess", "tables", "acknowledge", "ledger", "orphans")
    for verb in verbs():
        record = known(verb)
        given: dict[str, str] = {}
        if record is not None:
            holders = {name: value[0] for name, value in held.holders_of(verb).items()}
            given = {**{name: str(value) for name, value in record.example.items()}, **holders}
        actions = _actions_of(verb)
        subject = str(policy) if verb in of_policies else held.uri
        for action in actions:
            base = [verb, subject]
            base += [
                _word(e, given[e.dest]) for e in actions if e.dest in given and e is not action
            ]
            if action.nargs == 0:
                found.append([*base, action.option_strings[-1]])
            elif action.dest not in ("table", "config") or action.option_strings:
                found += [[*base, _word(action, text)] for text in ODD_TEXTS]
    # These two delete, and every selection has them.
    bare = [[verb, held.uri, *_words_for(held, verb)] for verb in DELETING]
    return [bare[0], *found, bare[1]]


def _words_for(held: HeldTable, verb: str) -> list[str]:
    given = held.holders_of(verb)
    return [_word(e, given[e.dest][0]) for e in _actions_of(verb) if e.dest in given]


def _actions_of(verb: str) -> list[argparse.Action]:
    parser = _parser([verb])
    (verbs_action,) = (e for e in parser._actions if isinstance(e, argparse._SubParsersAction))
    every = verbs_action.choices[verb]._actions
    return [action for action in every if not isinstance(action, argparse._HelpAction)]


def _word(action: argparse.Action, text: str) -> str:
    return f"{action.option_strings[-1]}={text}" if action.option_strings else text


def promised(
    path: Path, *, now: datetime = NOW, in_log: bool = False
) -> tuple[Folder, PolicyTable]:
    """Returns the table with the entry of its policy. Only `orphan.parquet` can be deleted.

    With `in_log`, the kept version is in the log of the table too, for callers without a policy.
    """
    lake = f"memory://{path.name}"
    first = (protocol(), metadata(id="00000000-0000-4000-8000-00000000000a"))
    table = Folder(named_memory(f"{lake}/orders"), now=now, first=first)
    for version in range(1, 6):
        days = 45 - version
        removed = [remove(f"{version - 1}.parquet", deletionTimestamp=days_ago(days, now))]
        table.log(add(f"{version}.parquet"), *removed[: version - 1], days=days)
        table.file(f"{version}.parquet", days=60)
    for version in (1, 2, 4, 5):
        table.checkpoint(version)
    table.file("orphan.parquet", days=60)
    clone = Folder(named_memory(f"{lake}/clone"), now=now)
    clone.log(add(f"{lake}/orders/2.parquet"))
    named_memory(f"{lake}/state").put("silver", b"3")
    table.store.now_ms = lambda: epoch_millis(now)
    if in_log:
        DeltaTable(f"{lake}/orders").keep_version("audit", keep=1)
    return table, Policy.from_json({"version": 1, "tables": [entry_of(lake)]}).named_tables[0]


def entry_of(lake: str) -> dict[str, Any]:
    """Returns the entry of the policy, as JSON."""
    return {
        "uri": f"{lake}/orders",
        "keep": [{"name": "audit", "version": 1}],
        "readers": [{"last_read": f"{lake}/state/silver", "name": "silver"}],
        "clones": {"also": [f"{lake}/clone"]},
        "vacuum": True,
        "clean_log": True,
    }


class HeldTable:
    """The table for many callers, made again after each one that changed it."""

    def __init__(self, path: Path, *, now: datetime = NOW, in_log: bool = False) -> None:
        lake = f"memory://{path.name}"
        self.entry = entry_of(lake)
        self.uri: str = self.entry["uri"]
        self._addresses = {"last_read": (f"{lake}/state/silver",), "clones": (f"{lake}/clone",)}
        self._make = lambda: promised(path, now=now, in_log=in_log)
        self.folder, self.policy_table = self._make()
        self._names = self._all_names()

    def holders_of(self, operation: str) -> dict[str, tuple[str, ...]]:
        """Returns the options of an operation that name the clone and the reader."""
        names = flag_names(find(operation))
        return {name: value for name, value in self._addresses.items() if name in names}

    def play(self, case: object, call: Callable[[], object]) -> str:
        """Calls, and requires that everything held exists. Returns how the call ended."""
        try:
            ended = str(call())[:200]
        except (Exception, SystemExit) as error:
            ended = type(error).__name__
        names = self._all_names()
        lost = (HELD | {f"_delta_log/{name}" for name in COMMITS}) - names
        assert not lost, (case, ended, sorted(lost))
        if names != self._names:
            self.folder, self.policy_table = self._make()
        return ended

    def _all_names(self) -> set[str]:
        return {
            path for batch in self.folder.store.list_tree() for path in batch["path"].to_pylist()
        }
