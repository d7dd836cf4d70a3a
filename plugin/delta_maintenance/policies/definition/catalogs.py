"""The catalogs of a policy: how to reach them, and the rules for the tables that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from delta_maintenance.address import CATALOG_TABLE, CatalogKind, CatalogName, is_catalog_name
from delta_maintenance.catalogs.catalog import CatalogTable
from delta_maintenance.catalogs.reference import ACCESS, LOCATION, MANAGED, NO_ACCESS, TABLE_ID
from delta_maintenance.operations.core.policy_values import (
    Address,
    PolicyModel,
    Settings,
    StorageRule,
)
from delta_maintenance.policies.definition.patterns import NamePattern
from delta_maintenance.policies.definition.rules import Rules

_TWO_PARTS = (CatalogKind.GLUE, CatalogKind.HIVE)
"""Kinds whose names have no catalog unless the policy states it."""


def _name_pattern(text: str) -> str:
    if not all(text.split(".")) or "." not in text:
        raise ValueError(
            "a pattern of names starts with the key of a catalog and has no empty part; write it "
            "like lake.sales.*"
        )
    return text


NamePatternText = Annotated[str, AfterValidator(_name_pattern)]
"""A pattern of names of tables, which starts with the key of a catalog."""


class Where(PolicyModel):
    """Conditions on what a catalog says of a table. All of them must hold."""

    owner: str | None = None
    """The owner in the catalog."""
    tags: Mapping[str, str] = Field(default_factory=dict)
    """Tags in the catalog, or properties of its entry, with their values; `*` is any value."""

    def holds(self, table: CatalogTable) -> bool:
        """Whether the table meets all conditions."""
        stated = {**table.properties, **table.tags}
        return (self.owner is None or self.owner == table.owner) and all(
            key in stated and value in ("*", stated[key]) for key, value in self.tags.items()
        )


class CatalogRule(Rules):
    """One catalog, and rules for its tables."""

    kind: Literal["unity", "glue", "hive", "lakekeeper", "polaris", "gravitino"]
    """The kind of catalog."""
    address: Address | None = None
    """Such as `https://HOST/api` or `thrift://HOST:9083`; may contain `${env:NAME}`. Without it,
    the environment or the vendor's default applies."""
    catalog: str | None = None
    """The name of the catalog, the warehouse or the account on the server; by default the key of
    this catalog."""
    options: Settings = Field(default_factory=dict)
    """Options of the kind, such as `token`. Secrets as `${env:NAME}`."""
    connection: str | None = None
    """The connection of an orchestrator, in place of address and options."""
    schemas: Mapping[str, Rules] = Field(default_factory=dict)
    """Rules for schemas: by the schema's name, or by a pattern of names. The first that matches
    applies."""

    if TYPE_CHECKING:
        # As in `Rules`.
        def __init__(self, **values: Any) -> None: ...

    @property
    def catalog_kind(self) -> CatalogKind:
        """The kind of catalog."""
        return CatalogKind[self.kind.upper()]

    def server_catalog(self, key: str) -> str | None:
        """The name of the catalog on the server; None if names have none."""
        return self.catalog or (None if self.catalog_kind in _TWO_PARTS else key)

    def below(self, key: str, parts: tuple[str, ...]) -> tuple[str, ...] | None:
        """The parts of a name, or of a namespace, below the catalog; None for other catalogs."""
        catalog = self.server_catalog(key)
        if catalog is None:
            return parts
        return parts[1:] if parts[:1] == (catalog,) else None

    def rules_of(self, key: str, below: tuple[str, ...]) -> list[tuple[str, Rules]]:
        """The rules of the catalog and of its first schema that matches, each with its place."""
        named_rules: list[tuple[str, Rules]] = [(f"catalogs.{key}", self)]
        for schema, rules in self.schemas.items():
            if NamePattern(f"{key}.{schema}").matches(below[:-1]):
                named_rules.append((f"catalogs.{key}.schemas.{schema}", rules))
                break
        return named_rules

    def reference(self) -> StorageRule:
        """How to reach the catalog, as storage options (`catalogs.settings.settings_of`)."""
        options = {f"catalog_{name}": value for name, value in self.options.items()}
        if self.address is not None:
            options["catalog_uri"] = self.address
        if self.catalog is not None:
            options["catalog_name"] = self.catalog
        return StorageRule(catalog_connection=self.connection, options=options)

    def storage_rule(self, table: CatalogTable, table_rule: StorageRule) -> StorageRule:
        """How to reach the table's store: by credentials of the catalog, if it vends them and the
        policy does not say otherwise.

        A catalog-managed table needs its catalog in any case, for its newest version.
        """
        vends = table.vends_credentials and table_rule.connection is None and not table_rule.options
        if not (vends or table.catalog_managed):
            return table_rule
        catalog = self.reference()
        options = {**catalog.options, CATALOG_TABLE: str(table.name), LOCATION: table.location}
        if not vends:
            options[ACCESS] = NO_ACCESS
        if table.catalog_managed:
            options[MANAGED] = "true"
            if table.table_id is not None:
                options[TABLE_ID] = table.table_id
        return StorageRule(
            connection=table_rule.connection,
            catalog_connection=catalog.catalog_connection,
            options={**options, **table_rule.options},
        )


def catalog_name_of(name: str) -> CatalogName | None:
    """Parses the name of a table if it is the name of a catalog's table."""
    return CatalogName.parse(name) if is_catalog_name(name) else None
