"""What the last runs in a ledger took, from which a budget expects the cost of the next ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.address import identity_of
from delta_maintenance.errors import NotADeltaTableError, failure_of
from delta_maintenance.ledger.summary import PRICED, REQUESTS, costs_of, total_of
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.policies.budget.estimates import CostHistory, newest_runs
from delta_maintenance.policies.definition.ledger import Prices

_LOOKS_BACK = timedelta(days=62)
_PART = 100_000
"""Rows that are collected before those that do not matter are dropped."""
_READ = tuple(
    dict.fromkeys(
        (
            *("table_uri", "operation", "outcome", "started_at", "seconds", "bytes_written"),
            *("engine", "expected_bytes", "expected_copied", "expected_requests"),
            *REQUESTS,
            *PRICED,
        )
    )
)


def known_costs(
    open_ledger: Callable[[], LedgerTable] | None, *, now: datetime, prices: Prices | None
) -> tuple[CostHistory, str | None]:
    """Returns the corrections from a ledger, and why it could not be read, in one line.

    Without a ledger, or as long as it has no rows, estimates are those of the constants.
    """
    if open_ledger is None:
        return CostHistory(prices=prices), None
    try:
        return cost_history(open_ledger(), now=now, prices=prices), None
    except NotADeltaTableError:
        return CostHistory(prices=prices), None
    except Exception as error:
        failure = failure_of(error, where="the ledger")
        problem = f"the usual order is used until the budget is spent: {failure}"
        return CostHistory(prices=prices), problem


def cost_history(
    ledger: LedgerTable, *, now: datetime, prices: Prices | None = None
) -> CostHistory:
    """Returns the corrections from the runs of the last two months that did their work.

    `NotADeltaTableError` if there is no ledger; otherwise the errors of reading a table.
    """
    runs: list[pa.Table] = []
    for batch in ledger.batches(_READ, since_month=f"{now - _LOOKS_BACK:%Y-%m}"):
        runs.append(_runs_of(batch, prices or Prices()))
        if sum(part.num_rows for part in runs) > _PART:
            runs = [newest_runs(pa.concat_tables(runs))]
    return CostHistory.of(newest_runs(pa.concat_tables(runs)), prices)


def _runs_of(rows: pa.Table, prices: Prices) -> pa.Table:
    """Returns what the runs that did their work took, of some rows of a ledger."""
    is_done = pc.equal(pc.fill_null(rows["outcome"], ""), "done")
    is_known = pc.and_(pc.is_valid(rows["expected_bytes"]), pc.is_valid(rows["operation"]))
    rows = rows.filter(pc.and_(is_done, is_known))
    # What tasks of Spark send is counted nowhere, and with Spark Connect neither is their time.
    is_local = pc.not_equal(pc.fill_null(rows["engine"], ""), "spark")
    is_timed = pc.or_(is_local, pc.is_valid(rows["spark_task_seconds"]))
    is_counted = pc.and_(is_local, pc.is_valid(rows["requests_read"]))
    places = rows["table_uri"].combine_chunks().dictionary_encode()
    identities = pa.array([identity_of(uri) for uri in places.dictionary.to_pylist()], pa.string())
    columns = {
        "table": pa.DictionaryArray.from_arrays(places.indices, identities).cast(pa.string()),
        "operation": rows["operation"],
        "started_at": rows["started_at"],
        "expected_bytes": rows["expected_bytes"],
        "expected_copied": rows["expected_copied"],
        "expected_requests": rows["expected_requests"],
        "cpu_seconds": pc.if_else(
            is_timed,
            pc.add(rows["cpu_seconds"], pc.fill_null(rows["spark_task_seconds"], 0.0)),
            None,
        ),
        "seconds": rows["seconds"],
        "bytes_rewritten": pc.if_else(is_local, rows["bytes_written"], None),
        "requests": pc.if_else(is_counted, total_of(rows, REQUESTS), None),
        "money": pc.if_else(is_timed, costs_of(rows, prices), None),
    }
    return pa.table(columns)
