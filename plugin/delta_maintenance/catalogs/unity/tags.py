"""Tags of Databricks: those of a table, and those that it inherits from its schema and catalog.

The open-source server has no such tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from delta_maintenance.catalogs.http.client import CatalogClient, segment
from delta_maintenance.catalogs.http.gathering import Gathering, stated
from delta_maintenance.catalogs.models import Aspect, CatalogListing, CatalogTable
from delta_maintenance.catalogs.names import CatalogKind, CatalogName
from delta_maintenance.errors import CatalogError

Parts = tuple[str, ...]


def tagged(client: CatalogClient, tables: Sequence[CatalogTable]) -> CatalogListing:
    """Requests the tags of tables: one request per table, per schema and per catalog.

    A table has its own value of a tag, or else that of its schema, or else that of its catalog. If
    the tags of a schema or a catalog cannot be read, its tables are left out.
    """

    def tags(parts: Parts) -> Iterator[tuple[Parts, Mapping[str, str]]]:
        yield parts, _tags(client, parts)

    def described(table: CatalogTable) -> Iterator[CatalogTable]:
        catalog, schema = (above[table.name.parts[:length]] for length in (1, 2))
        yield replace(table, tags={**catalog, **schema, **_tags(client, table.name.parts)})

    open_tables = [table for table in tables if Aspect.TAGS in table.further]
    rest = [table for table in tables if Aspect.TAGS not in table.further]
    namespaces = {table.name.parts[:length] for table in open_tables for length in (1, 2)}
    with Gathering(client, CatalogKind.UNITY, subject="the tags", needs=_RIGHTS) as gathering:
        above = dict(gathering.each(tags, [(parts, parts) for parts in sorted(namespaces)]))
        asked = [
            (table.name.parts, table)
            for table in open_tables
            if above.keys() >= {table.name.parts[:1], table.name.parts[:2]}
        ]
        found = gathering.each(described, asked)
        return gathering.part([*rest, *found])


def _tags(client: CatalogClient, parts: Parts) -> Mapping[str, str]:
    name = str(CatalogName(CatalogKind.UNITY, parts))
    if any("." in part for part in parts):
        raise CatalogError(f"the tags of {name} cannot be requested", remedy="rename it")
    kind = ("catalogs", "schemas", "tables")[len(parts) - 1]
    path = f"/entity-tag-assignments/{kind}/{segment('.'.join(parts))}/tags"
    return {
        tag["tag_key"]: tag.get("tag_value", "")
        for page in client.pages(path, {})
        for tag in stated(page, "tag_assignments", "tag_key", f"the tags of {name}")
    }


_RIGHTS = "USE CATALOG, USE SCHEMA and SELECT or BROWSE"
