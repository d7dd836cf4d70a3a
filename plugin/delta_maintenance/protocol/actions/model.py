"""Actions of the log that a snapshot keeps as objects, and their JSON form.

File actions (`add`, `remove`) are columns instead, because a table can have millions of them: see
`file_columns`. This module contains the actions that occur in small numbers: `protocol`,
`metaData`, `txn`, `domainMetadata`, `commitInfo` and the two actions of V2 checkpoints.

Implements the sections "Actions" and "V2 Checkpoint Actions". Every class keeps unknown fields in
`extra`, so that no field is lost when an action is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from delta_maintenance.errors import CorruptTableError

Json = Mapping[str, Any]
"""A parsed JSON object."""


def object_with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a parsed object, as the `object_pairs_hook` of `json`.

    Raises `ValueError` for a key that occurs twice, of which parsers use either.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object contains a key twice")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """`protocol`: the versions and features that a client must support ("Protocol Evolution")."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    """None if the action has no list, which is valid only below reader version 3."""
    writer_features: tuple[str, ...] | None = None
    """None if the action has no list, which is valid only below writer version 7."""
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` if a version is missing or a list is not a list of strings."""
        known_fields = {"minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"}
        return cls(
            min_reader_version=_integer(value, "minReaderVersion", "protocol"),
            min_writer_version=_integer(value, "minWriterVersion", "protocol"),
            reader_features=_strings_or_none(value, "readerFeatures", "protocol"),
            writer_features=_strings_or_none(value, "writerFeatures", "protocol"),
            extra=_unknown(value, known_fields),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action; absent feature lists are omitted."""
        out: dict[str, Any] = {
            "minReaderVersion": self.min_reader_version,
            "minWriterVersion": self.min_writer_version,
        }
        if self.reader_features is not None:
            out["readerFeatures"] = list(self.reader_features)
        if self.writer_features is not None:
            out["writerFeatures"] = list(self.writer_features)
        return out | dict(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """`metaData`: schema, partitioning and properties of the table ("Change Metadata")."""

    id: str | None
    name: str | None = None
    description: str | None = None
    format_provider: str | None = "parquet"
    format_options: Mapping[str, str] = field(default_factory=dict)
    schema_string: str | None
    """The schema string, unchanged; None if the log lacks it, which permits only work on the log.
    """
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    created_time: int | None = None
    """Milliseconds since 1970-01-01 UTC."""
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` if a field has the wrong type."""
        known_fields = {
            "id",
            "name",
            "description",
            "format",
            "schemaString",
            "partitionColumns",
            "configuration",
            "createdTime",
        }
        file_format = value.get("format")
        if file_format is not None and not isinstance(file_format, Mapping):
            raise CorruptTableError("metaData.format is not an object")
        return cls(
            id=_string_or_none(value, "id", "metaData"),
            name=_string_or_none(value, "name", "metaData"),
            description=_string_or_none(value, "description", "metaData"),
            format_provider=(file_format or {}).get("provider"),
            format_options=_string_map(file_format or {}, "options", "metaData.format"),
            schema_string=_string_or_none(value, "schemaString", "metaData"),
            partition_columns=_strings_or_none(value, "partitionColumns", "metaData") or (),
            configuration=_string_map(value, "configuration", "metaData"),
            created_time=_integer_or_none(value, "createdTime", "metaData"),
            extra=_unknown(value, known_fields),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action, with all required fields and the optional ones that are
        set.
        """
        out: dict[str, Any] = {"id": self.id}
        if self.name is not None:
            out["name"] = self.name
        if self.description is not None:
            out["description"] = self.description
        out["format"] = {
            "provider": self.format_provider or "parquet",
            "options": dict(self.format_options),
        }
        if self.schema_string is not None:
            out["schemaString"] = self.schema_string
        out["partitionColumns"] = list(self.partition_columns)
        out["configuration"] = dict(self.configuration)
        if self.created_time is not None:
            out["createdTime"] = self.created_time
        return out | dict(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """`txn`: the progress of an application ("Transaction Identifiers")."""

    app_id: str
    version: int
    last_updated: int | None = None
    """Milliseconds since 1970-01-01 UTC."""
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` without `appId` or `version`."""
        app_id = _string_or_none(value, "appId", "txn")
        if app_id is None:
            raise CorruptTableError("txn.appId is missing")
        return cls(
            app_id=app_id,
            version=_integer(value, "version", "txn"),
            last_updated=_integer_or_none(value, "lastUpdated", "txn"),
            extra=_unknown(value, {"appId", "version", "lastUpdated"}),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action."""
        out: dict[str, Any] = {"appId": self.app_id, "version": self.version}
        if self.last_updated is not None:
            out["lastUpdated"] = self.last_updated
        return out | dict(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainMetadata:
    """`domainMetadata`: a named configuration owned by a feature ("Domain Metadata")."""

    domain: str
    configuration: str
    """Opaque text. A map-valued configuration (draft of spring 2023) is kept as JSON text with
    sorted keys and without whitespace.
    """
    removed: bool = False
    draft_map: bool = False
    """Whether the log contains a map instead of a string."""
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` without a name or with a configuration of another type."""
        domain = _string_or_none(value, "domain", "domainMetadata")
        if domain is None:
            raise CorruptTableError("domainMetadata.domain is missing")
        configuration = value.get("configuration")
        draft_map = isinstance(configuration, Mapping)
        if draft_map:
            configuration = json.dumps(
                configuration, sort_keys=True, separators=(",", ":"), ensure_ascii=False
            )
        if configuration is not None and not isinstance(configuration, str):
            raise CorruptTableError(
                f"domainMetadata {domain!r} has a configuration that is not a string"
            )
        return cls(
            domain=domain,
            configuration=configuration or "",
            removed=bool(value.get("removed") or False),
            draft_map=draft_map,
            extra=_unknown(value, {"domain", "configuration", "removed"}),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action; the configuration is always a string, as the newest
        protocol requires.
        """
        return {
            "domain": self.domain,
            "configuration": self.configuration,
            "removed": self.removed,
        } | dict(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """`commitInfo`: free-form provenance of one commit ("Commit Provenance Information")."""

    values: Json

    @property
    def operation(self) -> str | None:
        """The name of the operation, if the writer recorded it."""
        value = self.values.get("operation")
        return value if isinstance(value, str) else None

    @property
    def in_commit_timestamp(self) -> int | None:
        """Milliseconds since 1970-01-01 UTC ("In-Commit Timestamps"); None if absent."""
        return _long_or_none(self.values.get("inCommitTimestamp"))

    @property
    def timestamp(self) -> int | None:
        """The writer's commit time in milliseconds since 1970-01-01 UTC."""
        return _long_or_none(self.values.get("timestamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """`checkpointMetadata`: marks a V2 checkpoint ("Checkpoint Metadata")."""

    version: int
    tags: Mapping[str, str] | None = None
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` without a version, as in the unreleased format of August 2023."""
        if "flavor" in value and value.get("version") is None:
            raise CorruptTableError("checkpointMetadata is that of a pre-release V2 checkpoint")
        return cls(
            version=_integer(value, "version", "checkpointMetadata"),
            tags=_string_map(value, "tags", "checkpointMetadata") or None,
            extra=_unknown(value, {"version", "tags"}),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action."""
        out: dict[str, Any] = {"version": self.version}
        if self.tags is not None:
            out["tags"] = dict(self.tags)
        return out | dict(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """`sidecar`: a file with some of the file actions of a V2 checkpoint ("Sidecar File
    Information").
    """

    path: str
    """URI-encoded, as in the manifest: a file name, a relative or an absolute path."""
    size_in_bytes: int
    modification_time: int
    """Milliseconds since 1970-01-01 UTC."""
    tags: Mapping[str, str] | None = None
    extra: Json = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """`CorruptTableError` without a path, as in the unreleased format of August 2023."""
        path = _string_or_none(value, "path", "sidecar")
        if path is None:
            draft = "a pre-release V2 checkpoint" if "fileName" in value else "missing its path"
            raise CorruptTableError(
                f"sidecar is {'that of ' if 'fileName' in value else ''}{draft}"
            )
        return cls(
            path=path,
            size_in_bytes=_integer(value, "sizeInBytes", "sidecar"),
            modification_time=_integer(value, "modificationTime", "sidecar"),
            tags=_string_map(value, "tags", "sidecar") or None,
            extra=_unknown(value, {"path", "sizeInBytes", "modificationTime", "tags"}),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the action."""
        out: dict[str, Any] = {
            "path": self.path,
            "sizeInBytes": self.size_in_bytes,
            "modificationTime": self.modification_time,
        }
        if self.tags is not None:
            out["tags"] = dict(self.tags)
        return out | dict(self.extra)


def _unknown(value: Json, known_fields: set[str]) -> dict[str, Any]:
    # A null is equivalent to an absent field (FILE-11).
    return {
        key: item for key, item in value.items() if key not in known_fields and item is not None
    }


def _integer(value: Json, key: str, action: str) -> int:
    number = _integer_or_none(value, key, action)
    if number is None:
        raise CorruptTableError(f"{action}.{key} is missing")
    return number


def _integer_or_none(value: Json, key: str, action: str) -> int | None:
    number = value.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63:
        raise CorruptTableError(f"{action}.{key} is not a 64-bit integer: {number!r}")
    return number


def _long_or_none(value: Any) -> int | None:
    """Returns a 64-bit integer, or None: an invalid value in a free-form field is not an error."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -(2**63) <= value < 2**63 else None


def _string_or_none(value: Json, key: str, action: str) -> str | None:
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise CorruptTableError(f"{action}.{key} is not a string: {text!r}")
    return text


def _strings_or_none(value: Json, key: str, action: str) -> tuple[str, ...] | None:
    items = value.get(key)
    if items is None:
        return None
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise CorruptTableError(f"{action}.{key} is not a list")
    if not all(isinstance(item, str) for item in items):
        raise CorruptTableError(f"{action}.{key} contains a value that is not a string")
    return tuple(items)


def _string_map(value: Json, key: str, action: str) -> dict[str, str]:
    items = value.get(key)
    if items is None:
        return {}
    # Parquet returns a map as a list of pairs.
    pairs = items.items() if isinstance(items, Mapping) else items
    try:
        return {str(name): text for name, text in pairs if isinstance(text, str)}
    except (TypeError, ValueError):
        raise CorruptTableError(f"{action}.{key} is not a map of strings") from None
