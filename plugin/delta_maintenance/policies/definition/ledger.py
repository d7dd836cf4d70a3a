"""Where the ledger is, as a key of a policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from delta_maintenance.operations.core.policy_values import Address, PolicyModel
from delta_maintenance.policies.definition.storage import StorageRule


class LedgerRule(PolicyModel):
    """The table with a row for each operation that ran."""

    uri: Address
    """Its address; it is created if it does not exist."""
    storage: StorageRule = StorageRule()
    """How to reach its store."""


def _address(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


Ledger = Annotated[LedgerRule, BeforeValidator(_address)]
"""An address alone is enough."""
