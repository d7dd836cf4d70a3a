"""The row in a ledger for one verb of an operation (`--ledger`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.operations.core.registry import AnyOperation

if TYPE_CHECKING:
    from delta_maintenance.policies.measuring import Cost, Measured
    from delta_maintenance.storage import Store


class LedgerRow:
    """What a verb says of its work while it goes on."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.document: Any = None
        """The Plan or the Result."""
        self.started: datetime | None = None

        self.store: Store | None = None

        self._is_wanted = is_wanted
        self._measuring = ExitStack()
        self._measured: Measured | None = None

    def measure(self, store: Store) -> None:
        """Counts the requests of the store from now on."""
        if self._is_wanted:
            self.store = store
            from delta_maintenance.policies.measuring import measured

            self._measured = self._measuring.enter_context(measured(store))

    @property
    def cost(self) -> Cost | None:
        """The cost until now."""
        self._measuring.close()
        return None if self._measured is None else self._measured.cost


@contextmanager
def ledger_row(record: AnyOperation, arguments: argparse.Namespace) -> Iterator[LedgerRow]:
    """Records the work of the block, also if it fails; problems of the ledger are warnings."""
    is_wanted = arguments.ledger is not None
    if is_wanted:
        # Refused before anything is done.
        Address.parse(arguments.ledger)
    row = LedgerRow(is_wanted=is_wanted)
    failure: Exception | None = None
    try:
        yield row
    except Exception as error:
        failure = error
        raise
    finally:
        if is_wanted:
            _record(record, arguments, row, failure=failure)


def _record(
    record: AnyOperation,
    arguments: argparse.Namespace,
    row: LedgerRow,
    *,
    failure: Exception | None,
) -> None:
    from delta_maintenance.cli import policy_ledger
    from delta_maintenance.policies.definition.ledger import LedgerRule
    from delta_maintenance.policies.execute import outcome_of_document
    from delta_maintenance.policies.measuring import freed_by
    from delta_maintenance.policies.models import RunResult

    ended = clock.now()
    started = row.started or ended
    outcome = outcome_of_document(
        record,
        row.document,
        planned=arguments.dry_run,
        failure=failure,
        started=started,
        seconds=(ended - started).total_seconds(),
        cost=row.cost,
    )
    if row.store is not None and row.document is not None and not arguments.dry_run:
        freed = freed_by(record.name, outcome.result, row.store.bytes_of_deleted, now=ended)
        outcome = replace(outcome, freed=freed)
    result = RunResult(
        name=arguments.catalog_name or arguments.table,
        uri=arguments.table,
        status="failed" if failure is not None else "done",
        started_at=started,
        ended_at=ended,
        outcomes=(outcome,),
    )
    given = dict(arguments.storage_options)
    rule = LedgerRule(uri=arguments.ledger)
    policy_ledger.record(policy_ledger.recorder_of(rule, given=given, state=None), result)
