"""Where the ledger is, and its own maintenance, as a key of a policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from delta_maintenance.operations.core.policy_values import Address, PolicyModel
from delta_maintenance.operations.core.rules import Limits
from delta_maintenance.policies.definition.rules import Rules, Switch, switched
from delta_maintenance.policies.definition.storage import StorageRule

LEDGER = "ledger"
"""The name of the ledger among the tables of its policy."""
TABLE_NAME = "delta_maintenance_ledger"
"""The name in the metadata of each ledger."""


class LedgerRule(PolicyModel):
    """The table with a row for each operation that ran."""

    uri: Address
    """Its address; it is created if it does not exist."""
    storage: StorageRule = StorageRule()
    """How to reach its store."""
    maintenance: Annotated[Rules | None, BeforeValidator(switched), Switch()] = Rules()
    """Rules beyond those by which the ledger itself is maintained, or `false` for none. `defaults`
    do not apply to the ledger; an entry of `tables` at its address replaces all of them."""

    @property
    def own_rules(self) -> Rules:
        """The rules of a ledger, which `maintenance` overrides."""
        return Rules(
            checkpoint={"max_commits": 100},
            optimize={"min_files_saved": 50},
            clean_log=True,
            vacuum={"every": "7 days"},
            storage=self.storage,
            # Only recorders write to it, and they put conditionally.
            other_writers="conditional_put",
            # A month has one file after it was optimized, and hundreds before.
            limits=Limits(max_deleted_share=None),
            # A table of the policy that is damaged must not keep the ledger from a vacuum.
            clones={"unreadable": "ignore"},
        )


def _address(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


Ledger = Annotated[LedgerRule, BeforeValidator(_address)]
"""An address alone is enough."""
