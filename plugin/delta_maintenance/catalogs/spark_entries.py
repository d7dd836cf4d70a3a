"""What Spark, Trino and Athena store of a Delta table in Hive Metastore and in AWS Glue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from delta_maintenance.address import Address, CatalogKind, CatalogName, encode_part
from delta_maintenance.catalogs.catalog import (
    CatalogFailure,
    CatalogListing,
    CatalogTable,
    PassedOver,
    checked_location,
)
from delta_maintenance.errors import CatalogError


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEntry:
    """The entry of a table or view, in the form that both catalogs share."""

    kind: CatalogKind
    parts: tuple[str, ...]
    is_view: bool
    parameters: Mapping[str, str]
    location: str | None
    serde_parameters: Mapping[str, str]
    owner: str | None
    comment: str | None
    entity_tag: str | None = None

    @property
    def passed_over(self) -> PassedOver | None:
        """Why the entry is no Delta table; None if it is one."""
        if self.is_view:
            return PassedOver.VIEW
        provider = self.parameters.get("spark.sql.sources.provider", "")
        # Athena's DDL sets only the second one.
        marks = (provider, self.parameters.get("table_type", ""))
        return None if "delta" in map(str.lower, marks) else PassedOver.OTHER_FORMAT

    def delta_table(self) -> CatalogTable:
        """The entry as a Delta table. `CatalogError` if it is none, or has no location."""
        name = CatalogName(self.kind, self.parts)
        if self.passed_over is not None:
            raise CatalogError(
                f"the catalog's entry is no Delta table ({self.passed_over})",
                table=str(name),
                remedy="name a Delta table",
            )
        # Spark has the location of an external table only here.
        path = self.serde_parameters.get("path") or self.location
        if not path or path.endswith(_PLACEHOLDER):
            raise CatalogError(
                "the catalog has no location of the table",
                table=str(name),
                remedy="repair the entry, or drop it from the catalog",
            )
        location = _address(path)
        checked_location(name, location)
        return CatalogTable(
            name=name,
            location=location,
            entity_tag=self.entity_tag,
            owner=self.owner or None,
            tags={key: value for key, value in self.parameters.items() if not _is_technical(key)},
            comment=self.comment or None,
            properties={
                key: value for key, value in self.parameters.items() if not key.startswith(_SCHEMA)
            },
        )


class EntryListing:
    """A listing as it grows."""

    def __init__(self, kind: CatalogKind) -> None:
        self._kind = kind
        self._tables: list[CatalogTable] = []
        self._failures: list[CatalogFailure] = []
        self.passed_over: Counter[PassedOver] = Counter()

    def put(self, entry: SparkEntry) -> None:
        """Adds an entry, or counts it if it is no Delta table."""
        if entry.passed_over is not None:
            self.passed_over[entry.passed_over] += 1
            return
        try:
            self._tables.append(entry.delta_table())
        except CatalogError as error:
            self.add_failure(entry.parts, error)

    def add_failure(self, name_parts: tuple[str, ...], error: CatalogError) -> None:
        """Adds a failure of the catalog, a namespace or a table."""
        self._failures.append(CatalogFailure(where=where_of(self._kind, name_parts), error=error))

    def add(self, listing: EntryListing) -> None:
        """Adds the listing of another part of the catalog."""
        self._tables += listing._tables
        self._failures += listing._failures
        self.passed_over += listing.passed_over

    def result(self, *, requests: int) -> CatalogListing:
        """The complete listing."""
        return CatalogListing(
            tables=tuple(sorted(self._tables, key=lambda table: table.name)),
            passed_over=dict(self.passed_over),
            failures=tuple(self._failures),
            requests=requests,
        )


def three_parts(name: CatalogName, catalog: str | None) -> tuple[str | None, str, str]:
    """Returns the catalog, the database and the table of a name that may leave out the first.

    `CatalogError` for a name with more parts.
    """
    if len(name.parts) > 3:
        raise CatalogError(
            f"the name of a {name.kind} table has at most three parts",
            table=str(name),
            remedy=f"write it like {name.kind}://DATABASE.TABLE",
        )
    *above, database, table = name.parts
    return (above[0] if above else catalog), database, table


def where_of(kind: CatalogKind, name_parts: tuple[str, ...]) -> str:
    """Returns the name of a part of a catalog, with the scheme."""
    return f"{kind}://{'.'.join(map(encode_part, name_parts))}"


def is_view(table_type: str) -> bool:
    """Whether a table of this type holds no files."""
    return table_type.upper().endswith("VIEW")


def _address(path: str) -> str:
    """Converts Hadoop's text of a path, in which nothing is percent-encoded."""
    scheme, mark, remainder = path.partition(":")
    if mark and scheme.lower() == "file":
        return str(Address("file", "", "/" + remainder.strip("/"), before="file://"))
    return path


def _is_technical(key: str) -> bool:
    """Whether an engine, not a person, wrote a parameter."""
    return "." in key or key in _TECHNICAL


_PLACEHOLDER = "-__PLACEHOLDER__"
"""The end of the location that Spark gives to the entries of external tables."""
_SCHEMA = "spark.sql.sources.schema"
_TECHNICAL = frozenset(
    (
        "COLUMN_STATS_ACCURATE",
        "CrawlerSchemaDeserializerVersion",
        "CrawlerSchemaSerializerVersion",
        "EXTERNAL",
        "UPDATED_BY_CRAWLER",
        "averageRecordSize",
        "bucketing_version",
        "classification",
        "comment",
        "compressionType",
        "last_modified_by",
        "last_modified_time",
        "numFiles",
        "numFilesErasureCoded",
        "numPartitions",
        "numRows",
        "objectCount",
        "partition_filtering.enabled",
        "rawDataSize",
        "recordCount",
        "sizeKey",
        "table_type",
        "totalSize",
        "transient_lastDdlTime",
        "typeOfData",
    )
)
"""Parameters that engines write, without those that have a dot."""
