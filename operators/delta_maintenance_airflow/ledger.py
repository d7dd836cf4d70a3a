"""Recording the runs of Airflow's tasks in the ledger of a policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance_airflow.hooks.delta import PolicyHook

if TYPE_CHECKING:
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.definition.ledger import LedgerRule
    from delta_maintenance.policies.models import RunResult

_log = logging.getLogger(__name__)


def record_run(
    rule: LedgerRule | None,
    store: AssessmentStore,
    result: RunResult,
    *,
    link: str,
    approved_by: Mapping[str, str],
) -> None:
    """Adds the rows of a run, if the policy has a ledger. Problems are warnings; the rows are then
    kept in the folder of assessments until a later run. `approved_by` names people by operation.
    """
    if rule is None:
        return
    # Loads pyarrow, which would slow down Dag parsing.
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin

    recorder = Recorder(open_ledger=lambda: _opened(rule), state=store.store)
    origin = Origin(done_by="airflow", run_id=clock.new_id(), link=link, approved_by=approved_by)
    for warning in recorder.record(result, origin):
        _log.warning("%s", warning)


def _opened(rule: LedgerRule) -> LedgerTable:
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.storage import open_store

    return LedgerTable(open_store(rule.uri, PolicyHook(rule.storage).storage_options(rule.uri)))
