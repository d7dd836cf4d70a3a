"""How to reach a catalog. The values of a policy, of an orchestrator's connection, or of the
environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.catalogs.names import CatalogKind
from delta_maintenance.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The address of one catalog and what authenticates to it. Its `repr` contains no secrets."""

    kind: CatalogKind
    address: str | None = None
    """Such as `https://HOST/api` or `thrift://HOST:9083`; None for the vendor's default."""
    catalog: str | None = None
    """The name of the catalog on its server (catalog, warehouse, account), if names of a policy
    have another first part."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the kind: `token`, `client_id`, `client_secret`, `token_address`, `scope`,
    `region` and others. Each kind refuses options that it does not know, by name."""

    def only(self, *names: str) -> Mapping[str, str]:
        """Returns the options. `InvalidRequestError` for one that is not among the names."""
        for name in sorted(self.options.keys() - set(names)):
            raise InvalidRequestError(
                f"a catalog of the kind {self.kind.name.lower()} has no option {name!r}",
                remedy=f"use one of {', '.join(sorted(names))}",
            )
        return self.options
