"""Resources that are given directly, or by name for Dagster to provide."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import dagster as dg

R = TypeVar("R", bound=dg.ConfigurableResource[Any])


# Compared by identity, because resources are not hashable.
@dataclass(frozen=True, eq=False)
class Reference(Generic[R]):
    """A resource of the component itself, or the key of one of the project's resources."""

    target: R | str

    @property
    def required(self) -> set[str]:
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
        # Reads the environment variables that its fields refer to.
        return cast(R, self.target.process_config_and_initialize())

    def named(self, connection: str | None) -> Reference[R]:
        """Returns the resource with the name of the policy's connection."""
        if connection is None:
            return self
        return Reference(re.sub(r"\W", "_", connection))
