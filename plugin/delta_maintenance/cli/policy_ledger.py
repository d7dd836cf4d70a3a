"""The ledger of a policy on the command line."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping
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

    opened = cache(lambda: open_ledger(rule, given))
    return Recorder(open_ledger=opened, state=state, address=rule.uri)


def record(recorder: Recorder, result: RunResult, *, approved: Iterable[str] = ()) -> None:
    """Records a run of a command; `approved` are operations that its user approved. Problems are
    warnings.
    """
    from delta_maintenance.ledger.rows import Origin

    by = _user()
    approved_by = {} if by is None else dict.fromkeys(approved, by)
    origin = Origin(done_by="cli", run_id=clock.new_id(), approved_by=approved_by)
    warnings = recorder.record(result, origin)
    warn(warnings)


def _user() -> str | None:
    """Returns the user of the operating system; None if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
