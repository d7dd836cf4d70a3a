"""The resource for the stores of tables. The resource for Spark is in `spark`."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import dagster as dg
from pydantic import Field

from delta_maintenance.errors import InvalidRequestError

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.operations.core.policy_values import StorageRule
    from delta_maintenance.policies.definition.policy import PolicyTable


class DeltaStorageResource(dg.ConfigurableResource[Any]):
    """Access to tables: the storage options of their stores.

    Without options, the environment of the process applies, as for every client of a store.

    .. code-block:: python

        DeltaStorageResource(
            options={
                "AWS_REGION": "eu-central-1",
                "AWS_ACCESS_KEY_ID": dg.EnvVar("LAKE_KEY"),
                "AWS_SECRET_ACCESS_KEY": dg.EnvVar("LAKE_SECRET"),
            }
        )
    """

    options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Storage options, as docs/integrations/stores.md lists them. Give secrets as "
            "`EnvVar` in Python and as `${env:NAME}` in YAML: both are read on use, and "
            "shown nowhere."
        ),
    )

    def storage_options(self, rule: "StorageRule", uri: str | None = None) -> dict[str, str]:
        """Returns the options for a store: these, overridden by those of the policy.

        With an address, options that only other stores have are omitted, because the tables of a
        component can be in several stores.
        """
        from delta_maintenance.policies.discovery import resolved_options
        from delta_maintenance.storage.options import options_for, options_over

        if rule.catalog_connection is not None:
            raise InvalidRequestError(
                f"the connection {rule.catalog_connection!r} of a catalog is one of Airflow",
                remedy="give the address and the options of the catalog in the policy, with "
                "${env:NAME} for secrets",
            )
        rule_of_resource = rule.model_copy(update={"options": self.options})
        options = options_over(resolved_options(rule_of_resource), resolved_options(rule))
        return options if uri is None else options_for(uri, options)

    def open_table(self, table: "PolicyTable") -> "Table":
        """Opens the table at its address. Nothing is read yet."""
        # Imported here because it loads PyArrow; definitions must load fast.
        from delta_maintenance.policies.discovery import open_policy_table

        return open_policy_table(table, self.storage_options)


R = TypeVar("R", bound=dg.ConfigurableResource[Any])


# Compared by identity, because resources are not hashable.
@dataclass(frozen=True, eq=False)
class Reference(Generic[R]):
    """A resource of the component itself, or the key of one of the project's resources."""

    target: R | str

    @property
    def keys(self) -> set[str]:
        """The resource keys that Dagster must provide."""
        return {self.target} if isinstance(self.target, str) else set()

    def resolve(self, resources: Any) -> R:
        """Returns the resource. `resources` are those of an execution, a check or a tick."""
        if isinstance(self.target, str):
            return cast(R, getattr(resources, self.target))
        return self.here()

    def here(self) -> R:
        """Returns the resource while definitions are loaded, when Dagster provides none."""
        if isinstance(self.target, str):
            raise dg.DagsterInvalidDefinitionError(
                f"the resource {self.target!r} is not available while definitions are loaded, but "
                "patterns of tables need it: specify the storage in the component"
            )
        return self._ready

    @cached_property
    def _ready(self) -> R:
        # Reads the environment variables that its fields refer to. Once, because Dagster makes an
        # instance with databases for each call.
        assert not isinstance(self.target, str)
        return cast(R, self.target.process_config_and_initialize())

    def of(self, connection: str | None) -> "Reference[R]":
        """Returns the resource with the name of the policy's connection."""
        if connection is None:
            return self
        return Reference(re.sub(r"\W", "_", connection))
