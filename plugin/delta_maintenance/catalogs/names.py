"""Names of tables in catalogs: `uc://main.sales.orders`.

A name consists of a scheme, which says which kind of catalog it belongs to, and of parts that are
separated by dots, from the catalog to the table. In a part, a dot is written `%2E` and a percent
sign `%25`; `/`, `?`, `#`, `@` and control characters are percent-encoded as well, so that a name
never looks like an address with credentials or a query. All other characters are literal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

from delta_maintenance.errors import InvalidRequestError


class CatalogKind(StrEnum):
    """The kinds of catalogs. The value is the scheme of the names of their tables."""

    UNITY = "uc"
    """Unity Catalog: the open-source server and Databricks."""
    GLUE = "glue"
    """AWS Glue Data Catalog."""
    HIVE = "hms"
    """Hive Metastore."""
    LAKEKEEPER = "lakekeeper"
    """Lakekeeper, generic tables."""
    POLARIS = "polaris"
    """Apache Polaris, generic tables."""
    GRAVITINO = "gravitino"
    """Apache Gravitino."""


@dataclass(frozen=True, slots=True, order=True)
class CatalogName:
    """The name of a table. Its `str` can be parsed again."""

    kind: CatalogKind
    parts: tuple[str, ...]
    """From the catalog to the table, not encoded; at least two parts. Namespaces of several levels
    have one part per level."""

    @classmethod
    def parse(cls, text: str) -> CatalogName:
        """Parses a name. `InvalidRequestError` if it has another form."""
        scheme, mark, rest = text.partition("://")
        if not mark or scheme.lower() not in _SCHEMES:
            raise InvalidRequestError(
                f"{text!r} is not the name of a table in a catalog",
                remedy="write it like uc://CATALOG.SCHEMA.TABLE",
            )
        pieces = rest.split(".")
        if len(pieces) < 2 or not all(pieces) or _RESERVED.search(rest):
            raise InvalidRequestError(
                f"the name {text!r} has an empty part, too few parts or a reserved character",
                remedy=f"write it like {scheme.lower()}://CATALOG.SCHEMA.TABLE, with %2E for a dot "
                "within a part",
            )
        try:
            parts = tuple(unquote(piece, errors="strict") for piece in pieces)
        except UnicodeDecodeError:
            raise InvalidRequestError(
                f"the name {text!r} is not percent-encoded UTF-8", remedy="write % as %25"
            ) from None
        return cls(CatalogKind(scheme.lower()), parts)

    @property
    def namespace(self) -> tuple[str, ...]:
        """The parts without the table."""
        return self.parts[:-1]

    @property
    def table(self) -> str:
        """The last part."""
        return self.parts[-1]

    @property
    def dotted(self) -> str:
        """The encoded parts without the scheme, as patterns of a policy match them."""
        return ".".join(encoded(part) for part in self.parts)

    def __str__(self) -> str:
        return f"{self.kind}://{self.dotted}"


def is_catalog_name(text: str) -> bool:
    """Whether a text that names a table has the scheme of a catalog."""
    return text.partition("://")[0].lower() in _SCHEMES and "://" in text


def is_in(name: CatalogName, where: str) -> bool:
    """Whether a name is that of a part of a catalog, or below it; `where` has the scheme."""
    return f"{name}.".startswith(f"{where}.")


def parts_of(where: str) -> tuple[str, ...]:
    """Returns the parts of a name or of a namespace with the scheme."""
    return tuple(unquote(part) for part in where.partition("://")[2].split(".") if part)


def encoded(part: str) -> str:
    """Returns one part of a name as it is written."""
    return _ENCODED.sub(lambda found: quote(found[0], safe=""), part).replace(".", "%2E")


_SCHEMES = frozenset(kind.value for kind in CatalogKind)
_RESERVED = re.compile(r"[/?#@\x00-\x1f\x7f]")
_ENCODED = re.compile(r"[%/?#@:*\x00-\x1f\x7f]")
