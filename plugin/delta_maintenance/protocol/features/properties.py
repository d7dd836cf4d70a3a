"""Typed table properties: the entries of `metaData.configuration` that affect maintenance.

The protocol does not define properties for retention and policy. Their names, defaults and interval
syntax are those that all engines share, with one exception, which follows the protocol
("Checkpoints"): statistics are written as structs only if the table requests it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.quantities import parse_interval

CheckpointPolicy = Literal["classic", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProperties:
    """The properties of a table; None for a property that is unset and has no default.

    A property states a request. Whether the table supports the feature behind it depends on its
    protocol.
    """

    append_only: bool = False
    checkpoint_interval: int = 10
    """Number of commits between checkpoints."""
    checkpoint_policy: CheckpointPolicy = "classic"
    write_stats_as_json: bool = True
    write_stats_as_struct: bool = False
    enable_expired_log_cleanup: bool = True
    log_retention: timedelta = timedelta(days=30)
    deleted_file_retention: timedelta = timedelta(days=7)
    time_until_archived: timedelta | None = None
    """The age from which on the store is said to archive data files."""
    set_transaction_retention: timedelta | None = None
    drop_feature_retention: timedelta = timedelta(hours=24)
    """The age of the history that is truncated when a feature is dropped."""
    require_checkpoint_protection_before_version: int = 0
    column_mapping_mode: str | None = None
    """As written; `schema.types.column_mapping_mode` returns the mode that is in effect."""
    column_mapping_max_column_id: int | None = None
    enable_change_data_feed: bool = False
    enable_deletion_vectors: bool = False
    enable_iceberg_compat_v1: bool = False
    enable_iceberg_compat_v2: bool = False
    enable_iceberg_compat_v3: bool = False
    enable_in_commit_timestamps: bool = False
    in_commit_timestamp_enablement_version: int | None = None
    in_commit_timestamp_enablement_timestamp: int | None = None
    """Milliseconds since 1970-01-01 UTC."""
    enable_row_tracking: bool = False
    row_tracking_suspended: bool = False
    symlink_manifests: bool = False
    """Whether writers keep symlink manifests up to date (`table/commit/manifests`)."""
    materialized_row_id_column: str | None = None
    """Physical name of the hidden column with the IDs of moved rows."""
    materialized_row_commit_version_column: str | None = None
    enable_type_widening: bool = False
    data_skipping_num_indexed_columns: int = 32
    """-1 means all columns."""
    data_skipping_stats_columns: str | None = None
    """Comma-separated names; takes precedence over the number of indexed columns."""
    target_file_size: int | None = None
    """Size of a new data file in bytes."""
    parquet_compression_codec: str | None = None
    parquet_format_version: str | None = None
    universal_formats: str = ""
    """The formats whose metadata Delta Spark writes after its commits (UniForm), with commas."""
    problems: tuple[str, ...] = ()
    """One clause for each invalid value, whose default is used instead. Readers can ignore the
    problems; operations that delete files must refuse."""

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, str]) -> TableProperties:
        """Parses the known properties of a configuration. Keys are case-sensitive."""
        values: dict[str, Any] = {}
        problems = []
        for field, (key, parse) in _PROPERTIES.items():
            # Configurations in Parquet checkpoints can contain nulls, which count as absent.
            text = configuration.get(key)
            if text is not None:
                try:
                    values[field] = parse(text)
                except InvalidRequestError as error:
                    problems.append(f"{key}: {error.problem}")
        return cls(**values, problems=tuple(problems))


def parse_boolean(text: str) -> bool:
    """Parses `true` or `false` in any case; raises `InvalidRequestError` for other text."""
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise InvalidRequestError(f"{text!r} is not true or false") from None


def integer_parser(*, minimum: int) -> Callable[[str], int]:
    """A parser of 64-bit integers of at least `minimum`; it raises `InvalidRequestError`."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and minimum <= int(text) < 2**63:
            return int(text)
        raise InvalidRequestError(f"{text!r} is not an integer of at least {minimum}")

    return parse


def parse_bytes(text: str) -> int:
    """Parses a size such as `104857600`, `100mb` or `1 GB`; units are powers of 1024.

    `InvalidRequestError` for other text, and for less than one byte.
    """
    words = re.fullmatch(r"([0-9]{1,18}) ?([kmgt]?)b?", text.strip().lower())
    size = int(words[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[words[2]] if words else 0
    if not 0 < size < 2**63:
        raise InvalidRequestError(
            f"{text!r} is not a size in bytes", remedy="write it like 134217728 or '128mb'"
        )
    return size


def _policy(text: str) -> str:
    if text not in ("classic", "v2"):
        raise InvalidRequestError(f"{text!r} is not classic or v2")
    return text


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "append_only": ("delta.appendOnly", parse_boolean),
    "checkpoint_interval": ("delta.checkpointInterval", integer_parser(minimum=1)),
    "checkpoint_policy": ("delta.checkpointPolicy", _policy),
    "write_stats_as_json": ("delta.checkpoint.writeStatsAsJson", parse_boolean),
    "write_stats_as_struct": ("delta.checkpoint.writeStatsAsStruct", parse_boolean),
    "enable_expired_log_cleanup": ("delta.enableExpiredLogCleanup", parse_boolean),
    "log_retention": ("delta.logRetentionDuration", parse_interval),
    "deleted_file_retention": ("delta.deletedFileRetentionDuration", parse_interval),
    "time_until_archived": ("delta.timeUntilArchived", parse_interval),
    "set_transaction_retention": ("delta.setTransactionRetentionDuration", parse_interval),
    "drop_feature_retention": (
        "delta.dropFeatureTruncateHistory.retentionDuration",
        parse_interval,
    ),
    "require_checkpoint_protection_before_version": (
        "delta.requireCheckpointProtectionBeforeVersion",
        integer_parser(minimum=0),
    ),
    "column_mapping_mode": ("delta.columnMapping.mode", str),
    "column_mapping_max_column_id": ("delta.columnMapping.maxColumnId", integer_parser(minimum=0)),
    "enable_change_data_feed": ("delta.enableChangeDataFeed", parse_boolean),
    "enable_deletion_vectors": ("delta.enableDeletionVectors", parse_boolean),
    "enable_iceberg_compat_v1": ("delta.enableIcebergCompatV1", parse_boolean),
    "enable_iceberg_compat_v2": ("delta.enableIcebergCompatV2", parse_boolean),
    "enable_iceberg_compat_v3": ("delta.enableIcebergCompatV3", parse_boolean),
    "enable_in_commit_timestamps": ("delta.enableInCommitTimestamps", parse_boolean),
    "in_commit_timestamp_enablement_version": (
        "delta.inCommitTimestampEnablementVersion",
        integer_parser(minimum=0),
    ),
    "in_commit_timestamp_enablement_timestamp": (
        "delta.inCommitTimestampEnablementTimestamp",
        integer_parser(minimum=0),
    ),
    "enable_row_tracking": ("delta.enableRowTracking", parse_boolean),
    "row_tracking_suspended": ("delta.rowTrackingSuspended", parse_boolean),
    "materialized_row_id_column": ("delta.rowTracking.materializedRowIdColumnName", str),
    "materialized_row_commit_version_column": (
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        str,
    ),
    "symlink_manifests": ("delta.compatibility.symlinkFormatManifest.enabled", parse_boolean),
    "enable_type_widening": ("delta.enableTypeWidening", parse_boolean),
    "data_skipping_num_indexed_columns": (
        "delta.dataSkippingNumIndexedCols",
        integer_parser(minimum=-1),
    ),
    "data_skipping_stats_columns": ("delta.dataSkippingStatsColumns", str),
    "target_file_size": ("delta.targetFileSize", parse_bytes),
    "parquet_compression_codec": ("delta.parquet.compression.codec", str),
    "parquet_format_version": ("delta.parquet.format.version", str),
    "universal_formats": ("delta.universalFormat.enabledFormats", str),
}
"""The key and the parser of each field."""

PARSERS: Mapping[str, Callable[[str], Any]] = {key: parse for key, parse in _PROPERTIES.values()}
"""The parser of each property that `TableProperties` contains, by the key of the property."""
