"""`optimize` and `purge` beside real writers: no row is lost, comes back, or is there twice.

Eight processes append with `deltalake`, one deletes with `deltalake` by copying files, one deletes
and one updates rows by deletion vectors. Every row has its own ID, and every writer a ledger of its
acts. New files are decoded, and row groups of merged files are copied. The race lasts until enough
bins are committed, however busy the machine is; or, if it is set, for
`DELTA_MAINTENANCE_REWRITE_RACE_SECONDS`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from delta_maintenance.storage.local import LocalStore
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.races import (
    LANDED,
    appenders,
    figures,
    landed_share,
    racing,
    until_landed,
)
from tests.support.rewrites.rewritten_tables import VECTORS

SECONDS = os.environ.get("DELTA_MAINTENANCE_REWRITE_RACE_SECONDS")
RUNS = 6
"""The runs of the optimizer; the fifth is a purge."""
BINS = 8
COPIED = 3
LONGEST = 240.0
"""The number of seconds after which writers end by themselves."""
WRITERS = [
    *appenders(),
    ("copying-deleter", 1),
    ("marking-deleter", 1),
    ("merger", 1),
    ("optimizer", 1),
]


@pytest.mark.process
@pytest.mark.conformance("RW-29", "RW-30", "RW-31")
def test_no_row_is_lost_or_restored(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    table, ledgers = tmp_path / "table", tmp_path / "ledgers"
    table.mkdir()
    columns = [field(name, kind) for name, kind in COLUMNS.items()]
    DataTable(
        *columns,
        store=LocalStore(str(table)),
        features=["deletionVectors"],
        configuration=VECTORS,
        partitioned_by=["p"],
    )
    with racing(table, ledgers, WRITERS, LONGEST if SECONDS is None else float(SECONDS)):
        if SECONDS is None:
            until_landed(ledgers, runs=RUNS, bins=BINS, copied=COPIED)
    found = figures(table, ledgers)
    print(json.dumps(found, indent=1))
    assert not found["wrong"], found
    bins = Counter(found["bins"])
    assert not bins["failed"] and not bins["not-proved"] and not bins["refused"], found
    landed = sum(bins[fate] for fate in LANDED)
    assert landed, found
    assert sum(found["copied"].get(fate, 0) for fate in LANDED) >= COPIED, found
    # A few bins of a short race say little.
    assert landed_share(found) >= 0.95 or bins.total() < 100, found
    count_cases("bins rewritten beside other writers", landed)


COLUMNS = {"id": "long", "v": "long", "text": "string", "p": "string"}
