"""Recording the runs of Airflow's tasks in the ledger of a policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, failure_of
from delta_maintenance_airflow.hooks.delta import DeltaHook, PolicyHook
from delta_maintenance_airflow.settings import assessment_store, policy_path

if TYPE_CHECKING:
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.definition.ledger import LedgerRule
    from delta_maintenance.policies.models import Assessment, RunResult

    _Add = Callable[[Recorder, Origin], list[str]]

_log = logging.getLogger(__name__)


def record_run(
    rule: LedgerRule | None, store: AssessmentStore, result: RunResult, *, link: str
) -> None:
    """Adds the rows of a run, if the policy has a ledger. Problems are warnings; the rows are then
    kept in the folder of assessments until a later run.
    """
    if rule is not None:
        hook = PolicyHook(rule.storage)
        _record(rule.uri, hook, store, lambda to, origin: to.record(result, origin), link=link)


def record_choice(
    rule: LedgerRule | None, store: AssessmentStore, assessments: Sequence[Assessment], *, link: str
) -> None:
    """Adds a row for each operation that waits because of the budget, all at once. Otherwise like
    `record_run`.
    """
    if rule is not None and assessments:
        from delta_maintenance.ledger.rows import rows_of_choice

        def add(to: Recorder, origin: Origin) -> list[str]:
            return to.record_rows(rows_of_choice(assessments, origin), origin)

        _record(rule.uri, PolicyHook(rule.storage), store, add, link=link)


def operation_ledger(
    uri: str | None, hook: DeltaHook, *, link: str
) -> Callable[[RunResult], None] | None:
    """Returns what records an operation that runs without a policy; None without a ledger.

    `uri` is the address of the ledger, which `hook` gives access to. The default is the ledger of
    the policy in Airflow's configuration. Problems are warnings.
    """
    if not uri:
        try:
            rule = _ledger_of_policy()
        except DeltaMaintenanceError as error:
            _log.warning("the ledger of the policy is unknown: %s", error)
            return None
        if rule is None:
            return None
        uri, hook = rule.uri, PolicyHook(rule.storage)
    # Refused before anything is done.
    address = str(Address.parse(uri))

    def record(result: RunResult) -> None:
        try:
            store = assessment_store()
            _record(address, hook, store, lambda to, origin: to.record(result, origin), link=link)
        except Exception as error:
            # For example a connection that does not exist.
            _log.warning("the ledger was not written: %s", failure_of(error, where="the ledger"))

    return record


def open_ledger(rule: LedgerRule) -> LedgerTable:
    """Opens the ledger with the connection that the policy names."""
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.storage import open_store

    return LedgerTable(open_store(rule.uri, PolicyHook(rule.storage).options_for(rule.uri)))


def _ledger_of_policy() -> LedgerRule | None:
    from delta_maintenance.policies.definition.policy import load_policy

    path = policy_path()
    return None if path is None else load_policy(path).ledger


def _record(uri: str, hook: DeltaHook, store: AssessmentStore, add: _Add, *, link: str) -> None:
    # Loads pyarrow, which would slow down Dag parsing.
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.rows import Origin

    recorder = Recorder.at(uri, lambda: hook.options_for(uri), state=store.store)
    origin = Origin(done_by="airflow", run_id=clock.new_id(), link=link)
    for warning in add(recorder, origin):
        _log.warning("%s", warning)
