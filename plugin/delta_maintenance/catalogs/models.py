"""What catalogs say of tables: values without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from delta_maintenance.catalogs.names import CatalogName
from delta_maintenance.errors import DeltaMaintenanceError


class Access(StrEnum):
    """What vended credentials are for."""

    READ = "read"
    READ_WRITE = "read_write"


class Aspect(StrEnum):
    """What some catalogs state of a table only on a further request."""

    OWNER = "owner"
    TAGS = "tags"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """One Delta table as its catalog describes it."""

    name: CatalogName
    location: str
    """The address of the table's root, as `address.Address` parses it."""
    table_id: str | None = None
    """The catalog's own ID of the table, if it has one."""
    entity_tag: str | None = None
    """Changes when the catalog's entry changes; None if the catalog has none."""
    owner: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    catalog_managed: bool = False
    """Whether commits go through the catalog: the table feature `catalogManaged`."""
    is_shallow_clone: bool = False
    """Whether the catalog says that the table needs data files of another one."""
    vends_credentials: bool = False
    """Whether `Catalog.credentials` can return credentials for the table."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the catalog's entry, which may differ from those in the log."""
    further: frozenset[Aspect] = frozenset()
    """What the catalog states only on a further request: `Catalog.described`."""
    described: Mapping[Aspect, datetime] = field(default_factory=dict)
    """When each of these was requested, in UTC."""


class PassedOver(StrEnum):
    """Why an entry of a catalog is not listed as a Delta table."""

    VIEW = "view"
    """Views, materialized views, functions."""
    OTHER_FORMAT = "other format"
    """Iceberg, Parquet, Hive and all other formats."""
    DELETED = "deleted"
    """Soft-deleted."""
    NOT_IN_POLICY = "not in the policy"
    """No pattern matches it, or one excludes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFailure:
    """A part of a catalog that could not be listed; it hides no other part."""

    where: str
    """The name of the catalog, the namespace or the table, with the scheme."""
    error: DeltaMaintenanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogListing:
    """The Delta tables that match a pattern."""

    tables: tuple[CatalogTable, ...] = ()
    """Sorted by name."""
    passed_over: Mapping[PassedOver, int] = field(default_factory=dict)
    """Counts of entries that are not Delta tables, or not to be looked after."""
    failures: tuple[CatalogFailure, ...] = ()
    without: frozenset[Aspect] = frozenset()
    """What the server has of no table, as its settings are."""
    requests: int = 0
    """The number of requests that were sent, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendedCredentials:
    """Temporary credentials for all files below a prefix."""

    prefix: str
    """An address; the longest prefix that contains a file applies."""
    access: Access
    expires_at: datetime | None
    """In UTC; None if the catalog does not say."""
    options: Mapping[str, str] = field(repr=False)
    """Storage options of the store at the prefix (`storage.options`), secrets included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedCommit:
    """A commit that the catalog ratified and that may not be published yet."""

    version: int
    file_name: str
    """The name of the staged file below `_delta_log/_staged_commits/`."""
    size: int
    modified_ms: int
    timestamp_ms: int
    """The in-commit timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedState:
    """One consistent cut of the commits of a catalog-managed table."""

    table_id: str
    latest_version: int
    commits: tuple[ManagedCommit, ...]
    """Ascending and contiguous, up to the latest version; empty if all commits are published."""
    allowed_maintenance: frozenset[str] = frozenset()
    """The maintenance that the catalog permits, as it names it; unknown values are left out."""
    details: Mapping[str, Any] = field(default_factory=dict)
