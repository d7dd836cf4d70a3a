"""How to reach a store, as keys of a policy."""

from __future__ import annotations

from pydantic import Field

from delta_maintenance.operations.core.policy_values import PolicyModel, Settings


class StorageRule(PolicyModel):
    """How to reach a store: by references, never with secrets."""

    connection: str | None = None
    """The connection of an orchestrator."""
    options: Settings = Field(default_factory=dict)
    """Storage options (docs/stores.md). Secrets as `${env:NAME}`."""
    catalog_connection: str | None = None
    """The connection of an orchestrator to the catalog of the table. Set for tables that a catalog
    names."""
