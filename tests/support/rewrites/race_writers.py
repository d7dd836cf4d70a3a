"""The writers of a race, each in a process of its own.

    python -m tests.support.rewrites.race_writers ROLE TABLE LEDGERS NUMBER SECONDS

`appender` and `copying-deleter` are `deltalake`, `optimizer` is this library, and `marking-deleter`
and `merger` are writers of this test that use deletion vectors.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from delta_maintenance.operations.core import RunContext
from tests.support.rewrites.race_ledgers import (
    APPENDER_IDS,
    BLOCK,
    MERGED_IDS,
    Ledger,
    Outcome,
    acts,
    partition_of,
    text_of,
)

COPYING, MARKING, MERGING = 1, 2, 3
"""The rows that the copying deleter, the marking deleter and the merger choose, by the ID
modulo 4.
"""
TARGET_BYTES = 256 << 10
OPTIMIZE_EVERY = 1.0
"""The interval in seconds between the starts of `optimize` runs."""
ENDED = "ended"
"""The name of the file among the ledgers that ends the race."""
COPIED_BYTES = 6 << 10
"""The least average size of copied row groups, with which files of one append are decoded, and most
files of several ones copied.
"""
PURGE_EVERY = 5
"""Every n-th run is a `purge` instead of an `optimize`."""


def append(table: str, ledgers: Path, number: int, until: float) -> None:
    """Appends blocks of rows, about one per second."""
    import pyarrow as pa
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    ledger, chance = Ledger(ledgers, f"appender-{number}"), random.Random(number)
    first = number * APPENDER_IDS
    while goes_on(ledgers, until):
        ids = range(first, first + BLOCK)
        first += BLOCK
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "v": pa.array([0] * BLOCK, pa.int64()),
                "text": [text_of(row) for row in ids],
                "p": [partition_of(row) for row in ids],
            }
        )
        try:
            write_deltalake(table, rows, mode="append")
        except DeltaError as error:
            ledger.note("append", "failed", ids=ids, problem=str(error))
        else:
            ledger.note("append", "committed", ids=ids)
        time.sleep(chance.uniform(0.5, 1.5))


def delete(table: str, ledgers: Path, number: int, until: float) -> None:
    """Deletes a few rows of a partition by copying the files, about every two seconds."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    ledger, chance = Ledger(ledgers, f"copying-deleter-{number}"), random.Random(number)
    done: set[int] = set()
    while goes_on(ledgers, until):
        time.sleep(chance.uniform(1, 3))
        ids = chosen(ledgers, COPYING, done, chance, most=5)
        if not ids:
            continue
        rows = ", ".join(map(str, ids))
        try:
            DeltaTable(table).delete(f"p = '{partition_of(ids[0])}' AND id IN ({rows})")
        except DeltaError as error:
            ledger.note("delete", "failed", ids=ids, problem=str(error))
        else:
            ledger.note("delete", "committed", ids=ids)
            done.update(ids)


def mark(table: str, ledgers: Path, number: int, until: float) -> None:
    """Deletes a few rows of a partition by deletion vectors, about every second."""
    from tests.support.rewrites.vector_writers import VectorWriter

    ledger, chance = Ledger(ledgers, f"marking-deleter-{number}"), random.Random(number)
    writer, done = VectorWriter(table), set[int]()
    while goes_on(ledgers, until):
        time.sleep(chance.uniform(0.5, 1.5))
        ids = chosen(ledgers, MARKING, done, chance, most=5)
        if ids and writer.delete(ids):
            ledger.note("delete", "committed", ids=ids)
            done.update(ids)
        elif ids:
            ledger.note("delete", "failed", ids=ids)


def merge(table: str, ledgers: Path, number: int, until: float) -> None:
    """Changes the value of three rows and inserts two, about every second."""
    from tests.support.rewrites.vector_writers import VectorWriter

    ledger, chance = Ledger(ledgers, f"merger-{number}"), random.Random(number)
    writer, value, new = VectorWriter(table), 0, MERGED_IDS
    while goes_on(ledgers, until):
        time.sleep(chance.uniform(0.5, 1.5))
        old = chosen(ledgers, MERGING, set(), chance, most=3)
        if not old:
            continue
        value += 1
        new += BLOCK
        while partition_of(new) != partition_of(old[0]):
            new += BLOCK
        committed = writer.merge(old, [new, new + 1], value)
        outcome: Outcome = "committed" if committed else "failed"
        ledger.note("merge", outcome, ids=[*old, new, new + 1], value=value)


def optimize(table: str, ledgers: Path, number: int, until: float) -> None:
    """Runs `optimize`, and sometimes `purge`, without a pause after long runs."""
    from delta_maintenance import clock
    from delta_maintenance.errors import DeltaMaintenanceError
    from delta_maintenance.operations import optimize as merging
    from delta_maintenance.operations import purge as purging
    from delta_maintenance.operations.rewriting import contract
    from delta_maintenance.storage.local import LocalStore
    from delta_maintenance.table.read import Table

    ledger, opened = Ledger(ledgers, f"optimizer-{number}"), Table(LocalStore(table))
    contract.COPIED_GROUP_BYTES = COPIED_BYTES
    runs = 0
    while goes_on(ledgers, until):
        began = time.time()
        runs += 1
        try:
            if runs % PURGE_EVERY:
                options = merging.OptimizeOptions(target_bytes=TARGET_BYTES, workers=1)
                planned = merging.plan(
                    opened.snapshot(), options, context=RunContext.at(clock.now())
                )
                result = merging.apply(opened, planned)
            else:
                purge = purging.PurgeOptions(workers=1)
                doomed = purging.plan(opened.snapshot(), purge, context=RunContext.at(clock.now()))
                result = purging.apply(opened, doomed)
        except DeltaMaintenanceError as error:
            ledger.note("optimize", "failed", problem=str(error))
        else:
            problem = "" if result.status in ("rewritten", "nothing-to-do") else result.status
            said = f"{problem}: {result.problem}" if problem else ""
            copied = dict(Counter(each.fate for each in result.bins if each.copied))
            ledger.note("optimize", "committed", fates=result.fates, copied=copied, problem=said)
        time.sleep(max(0.0, began + OPTIMIZE_EVERY - time.time()))


def goes_on(ledgers: Path, until: float) -> bool:
    """Whether the race continues: neither is the time over, nor has the test ended it."""
    return time.time() < until and not (ledgers / ENDED).exists()


def chosen(
    ledgers: Path, share: int, done: set[int], chance: random.Random, *, most: int
) -> Sequence[int]:
    """Chooses appended rows of one partition that belong to this writer and have not been chosen
    before.
    """
    found: dict[str, list[int]] = {}
    for act in acts(ledgers):
        if act.kind == "append" and act.outcome == "committed":
            own = [row for row in act.ids if row % 4 == share and row not in done]
            found.setdefault(partition_of(act.ids[0]), []).extend(own)
    full = [rows for rows in found.values() if rows]
    if not full:
        return ()
    rows = chance.choice(full)
    return sorted(chance.sample(rows, min(most, len(rows))))


ROLES = {
    "appender": append,
    "copying-deleter": delete,
    "marking-deleter": mark,
    "merger": merge,
    "optimizer": optimize,
}

_IMPORTS = {"appender": "deltalake", "copying-deleter": "deltalake"}
"""The slow imports; other writers import this library."""

if __name__ == "__main__":
    role, path, folder, which, seconds = sys.argv[1:]
    import_module(_IMPORTS.get(role, "delta_maintenance.operations.rewriting.optimize"))
    Path(folder, f"{role}-{which}.ready").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.05)
    ROLES[role](path, Path(folder), int(which), time.time() + float(seconds))
