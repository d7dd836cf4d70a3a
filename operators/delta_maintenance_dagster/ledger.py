"""Recording the runs of Dagster in the ledger of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock

if TYPE_CHECKING:
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.definition.ledger import LedgerRule
    from delta_maintenance.policies.definition.prices import Prices
    from delta_maintenance.policies.models import RunResult
    from delta_maintenance.storage import Store


_SHOWN = 10
_LOOKS_BACK = timedelta(days=31)


def last_rows(
    rule: LedgerRule,
    table: str,
    *,
    storage_options: Callable[[], Mapping[str, str]],
    prices: Prices | None,
) -> Sequence[Mapping[str, Any]]:
    """Returns the newest rows of a table, the newest first; none if the store of the ledger failed
    a short while ago. Raises the errors of the ledger.
    """
    from delta_maintenance.ledger.recording import is_unreachable
    from delta_maintenance.ledger.summary import newest
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.storage import open_store

    if is_unreachable(rule.uri, None):
        return ()
    ledger = LedgerTable(open_store(rule.uri, storage_options()))
    since = clock.now() - _LOOKS_BACK
    rows: list[dict[str, Any]] = newest(
        ledger, since=since, most=_SHOWN, table=table, prices=prices
    ).to_pylist()
    return rows


def record_run(
    rule: LedgerRule,
    result: RunResult,
    *,
    storage_options: Callable[[], Mapping[str, str]],
    state: Store | None,
    link: str,
    approved_by: Mapping[str, str],
) -> list[str]:
    """Adds the rows of a run; returns warnings. Without a `state` folder, rows that cannot be added
    are lost. `approved_by` has people or runs by operation.
    """
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.storage import open_store

    def opened() -> LedgerTable:
        return LedgerTable(open_store(rule.uri, storage_options()))

    origin = Origin(done_by="dagster", run_id=clock.new_id(), link=link, approved_by=approved_by)
    recorder = Recorder(open_ledger=opened, state=state, address=rule.uri)
    return recorder.record(result, origin)
