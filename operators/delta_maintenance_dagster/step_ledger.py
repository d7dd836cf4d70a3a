"""The ledger of a policy file in a step: its rows are delivered, and the newest ones read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, StorageError
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.step_resources import Context, SharedState

if TYPE_CHECKING:
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.definition.ledger import LedgerRule, Prices
    from delta_maintenance.storage import Store

_SHOWN_ROWS = 10
_LOOKS_BACK = timedelta(days=31)


@dataclass(frozen=True, kw_only=True)
class StepLedger:
    """The ledger that a policy file names, as a step reaches it."""

    context: Context
    rule: LedgerRule
    storage: Reference[DeltaStorageResource]
    outbox: SharedState | None = None
    """Where rows are kept until the ledger can be written."""

    def deliver(self, record: Callable[[Recorder, Origin], list[str]]) -> None:
        """Delivers the rows that `record` gives to the recorder. Problems are warnings."""
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.ledger.recording import Recorder
        from delta_maintenance.ledger.rows import Origin

        outbox, provided = self.outbox, self.context.resources
        link = f"/runs/{self.context.run.run_id}"
        origin = Origin(done_by="dagster", run_id=clock.new_id(), link=link)
        try:
            with nullcontext() if outbox is None else outbox.opening(provided) as state:
                store = state.store if state is not None else None
                recorder = Recorder.at(self.rule.uri, self._options, state=store)
                for warning in record(recorder, origin):
                    self.context.log.warning(warning)
        except DeltaMaintenanceError as error:
            self.context.log.warning(f"the ledger was not written: {error}")

    def open(self, state: Store | None = None) -> LedgerTable:
        """Opens the ledger. Raises `StorageError` if its store failed a short while ago, in any
        process that shares the folder `state`.
        """
        from delta_maintenance.ledger.recording import is_unreachable
        from delta_maintenance.ledger.table import LedgerTable
        from delta_maintenance.storage import open_store

        if is_unreachable(self.rule.uri, state):
            raise StorageError("its store failed a short while ago")
        return LedgerTable(open_store(self.rule.uri, self._options()))

    def last_rows(self, table: str, *, prices: Prices | None) -> Sequence[Mapping[str, Any]]:
        """Returns the newest rows of a table, the newest first. Raises the errors of the ledger."""
        from delta_maintenance.ledger.summary import newest

        since = clock.now() - _LOOKS_BACK
        rows: list[dict[str, Any]] = newest(
            self.open(), since=since, most=_SHOWN_ROWS, table=table, prices=prices
        ).to_pylist()
        return rows

    def _options(self) -> Mapping[str, str]:
        storage = self.storage.of(self.rule.storage.connection).resolve(self.context.resources)
        return storage.storage_options(self.rule.storage, uri=self.rule.uri)
