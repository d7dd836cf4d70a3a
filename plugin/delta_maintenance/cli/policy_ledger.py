"""The ledger of a policy on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.output import warn

if TYPE_CHECKING:
    from delta_maintenance.ledger.recording import Recorder
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.definition.ledger import LedgerRule
    from delta_maintenance.policies.models import RunResult
    from delta_maintenance.storage import Store


def open_ledger(rule: LedgerRule, given: Mapping[str, str]) -> LedgerTable:
    """Opens the ledger. Storage options of the command line replace a connection."""
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.discovery import environment_options, resolved_options
    from delta_maintenance.storage import open_store

    options = (
        {**resolved_options(rule.storage), **given} if given else environment_options(rule.storage)
    )
    return LedgerTable(open_store(rule.uri, options))


def recorder_of(rule: LedgerRule, *, given: Mapping[str, str], state: Store | None) -> Recorder:
    """Returns what records the runs of a command in the ledger."""
    from delta_maintenance.ledger.recording import Recorder

    return Recorder(open_ledger=cache(lambda: open_ledger(rule, given)), state=state)


def record(recorder: Recorder, result: RunResult) -> None:
    """Records a run of a command. Problems are warnings."""
    from delta_maintenance.ledger.rows import Origin

    warn(recorder.record(result, Origin(done_by="cli", run_id=clock.new_id())))
