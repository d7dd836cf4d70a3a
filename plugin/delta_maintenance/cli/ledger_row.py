"""The row in a ledger for one verb of an operation (`--ledger`)."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance.address import Address
from delta_maintenance.ledger.one_operation import OneOperation, recorded
from delta_maintenance.operations.core.registry import AnyOperation

if TYPE_CHECKING:
    from delta_maintenance.policies.models import RunResult


def ledger_row(
    record: AnyOperation, arguments: argparse.Namespace
) -> AbstractContextManager[OneOperation]:
    """Records the work of the block, also if it fails; problems of the ledger are warnings."""
    if arguments.ledger is not None:
        # Refused before anything is done.
        Address.parse(arguments.ledger)
    return recorded(
        record,
        None if arguments.ledger is None else partial(_record, arguments),
        name=lambda: arguments.catalog_name or arguments.table,
        plans=arguments.dry_run,
    )


def _record(arguments: argparse.Namespace, result: RunResult) -> None:
    from delta_maintenance.cli import policy_ledger
    from delta_maintenance.policies.definition.ledger import LedgerRule

    storage_options = dict(arguments.storage_options)
    rule = LedgerRule(uri=arguments.ledger)
    policy_ledger.record(policy_ledger.recorder_of(rule, given=storage_options, state=None), result)
