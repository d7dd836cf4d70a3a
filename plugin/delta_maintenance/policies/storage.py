"""Opens the table of a policy with its storage settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.policy_values import resolve
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import StorageRule
from delta_maintenance.table.read.table import Table, open_table

StorageOptions = Callable[[StorageRule], Mapping[str, str]]
"""Returns the storage options that a rule refers to."""


def environment_options(
    rule: StorageRule, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the options of a rule, with references to the environment resolved.

    Raises `InvalidRequestError` for an unset variable, and for a connection, because only
    orchestrators have connections.
    """
    if rule.connection is not None:
        raise InvalidRequestError(
            f"only an orchestrator can resolve the connection {rule.connection!r}",
            remedy="run the policy in an orchestrator, or give storage options in the policy",
        )
    return resolved_options(rule, environment)


def resolved_options(
    rule: StorageRule, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns only the options of a rule, for callers that resolve its connection."""
    values = os.environ if environment is None else environment
    return {name: resolve(value, values) for name, value in rule.options.items()}


def open_policy_table(
    table: PolicyTable, storage_options: StorageOptions = environment_options
) -> Table:
    """Opens the table at its address. Nothing is read yet."""
    return open_table(table.uri, storage_options(table.rules.storage))
