"""Table properties: the part of `metaData.configuration` that steers maintenance, typed.

No text of the protocol describes the properties of retention and policy; names, defaults and the
syntax of intervals are those that all engines share. One default follows the protocol instead
("Checkpoints"): statistics as a struct are only written where the table asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from delta_maintenance.errors import InvalidRequestError

CheckpointPolicy = Literal["classic", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProperties:
    """What the table is configured to; None where a property is unset and has no default.

    A property only says what is wished. Whether the feature behind it is supported is a question
    to the protocol.
    """

    append_only: bool = False
    checkpoint_interval: int = 10
    """Commits from one checkpoint to the next."""
    checkpoint_policy: CheckpointPolicy = "classic"
    write_stats_as_json: bool = True
    write_stats_as_struct: bool = False
    enable_expired_log_cleanup: bool = True
    log_retention: timedelta = timedelta(days=30)
    deleted_file_retention: timedelta = timedelta(days=7)
    set_transaction_retention: timedelta | None = None
    drop_feature_retention: timedelta = timedelta(hours=24)
    """How long history stays before a feature may go together with it."""
    require_checkpoint_protection_before_version: int = 0
    column_mapping_mode: str | None = None
    """As it stands; `schema.column_mapping_mode` tells what it comes to."""
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
    materialized_row_id_column: str | None = None
    """Physical name of the hidden column that keeps the ids of moved rows."""
    materialized_row_commit_version_column: str | None = None
    enable_type_widening: bool = False
    data_skipping_num_indexed_columns: int = 32
    """-1 means all."""
    data_skipping_stats_columns: str | None = None
    """Comma-separated names; overrules the number of indexed columns."""
    target_file_size: int | None = None
    """Bytes of a new data file."""
    parquet_compression_codec: str | None = None
    parquet_format_version: str | None = None
    problems: tuple[str, ...] = ()
    """One clause for each value that could not be read and left its default in force. Good enough
    for reading; whoever deletes must refuse."""

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, str]) -> TableProperties:
        """Reads what is known in `configuration` and ignores the rest. Keys are case-sensitive."""
        values: dict[str, Any] = {}
        problems = []
        for field, (key, parse) in _PROPERTIES.items():
            # Configurations from Parquet may hold null values, which are as good as absent.
            text = configuration.get(key)
            if text is not None:
                try:
                    values[field] = parse(text)
                except InvalidRequestError as error:
                    problems.append(f"{key}: {error.problem}")
        return cls(**values, problems=tuple(problems))


def parse_interval(text: str) -> timedelta:
    """The length of a calendar interval such as `interval 30 days` or `7 days 12 hours`.

    The word `interval` may be missing, case does not matter. Units go from weeks to microseconds;
    only seconds take a fraction. `InvalidRequestError` for anything else: months and years, which
    have no fixed length, and a total below zero.
    """
    words = _INTERVAL.fullmatch(" ".join(text.lower().split()))
    if words is None:
        raise _invalid_interval(text)
    total = timedelta()
    try:
        for sign, amount, fraction, unit in _TERM.findall(words["terms"]):
            length = _UNITS[unit] * int(amount or 0)
            if fraction:
                if unit != "second":
                    raise _invalid_interval(text)
                length += timedelta(microseconds=int(fraction[1:7].ljust(6, "0")))
            total += -length if sign == "-" else length
    except OverflowError:
        raise _invalid_interval(text) from None
    if total < timedelta():
        raise _invalid_interval(text)
    return total


_UNITS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
# Eighteen digits fit every length that a timedelta can hold and keep `int` cheap.
_TERM = re.compile(
    rf"([+-]?) ?(?=[0-9.]*[0-9])([0-9]{{0,18}})(\.[0-9]{{0,9}})? ({'|'.join(_UNITS)})s?\b"
)
_INTERVAL = re.compile(rf"(?:interval )?(?P<terms>{_TERM.pattern}(?: {_TERM.pattern})*)")


def _invalid_interval(text: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{text!r} is no interval of fixed, non-negative length",
        remedy="write it like 'interval 7 days', in weeks to microseconds",
    )


def parse_boolean(text: str) -> bool:
    """`true` or `false` in any case; `InvalidRequestError` for anything else."""
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise InvalidRequestError(f"{text!r} is neither true nor false") from None


def integer_parser(*, least: int) -> Callable[[str], int]:
    """Reads 64-bit integers of at least `least`; `InvalidRequestError` for anything else."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text) and least <= int(text) < 2**63:
            return int(text)
        raise InvalidRequestError(f"{text!r} is no whole number from {least} on")

    return parse


def parse_bytes(text: str) -> int:
    """The bytes of a size such as `104857600`, `100mb` or `1 GB`; units are powers of 1024.

    `InvalidRequestError` for anything else, and for less than one byte.
    """
    words = re.fullmatch(r"([0-9]{1,18}) ?([kmgt]?)b?", text.strip().lower())
    size = int(words[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[words[2]] if words else 0
    if not 0 < size < 2**63:
        raise InvalidRequestError(
            f"{text!r} is no size in bytes", remedy="write it like 134217728 or '128mb'"
        )
    return size


def _policy(text: str) -> str:
    if text not in ("classic", "v2"):
        raise InvalidRequestError(f"{text!r} is neither classic nor v2")
    return text


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "append_only": ("delta.appendOnly", parse_boolean),
    "checkpoint_interval": ("delta.checkpointInterval", integer_parser(least=1)),
    "checkpoint_policy": ("delta.checkpointPolicy", _policy),
    "write_stats_as_json": ("delta.checkpoint.writeStatsAsJson", parse_boolean),
    "write_stats_as_struct": ("delta.checkpoint.writeStatsAsStruct", parse_boolean),
    "enable_expired_log_cleanup": ("delta.enableExpiredLogCleanup", parse_boolean),
    "log_retention": ("delta.logRetentionDuration", parse_interval),
    "deleted_file_retention": ("delta.deletedFileRetentionDuration", parse_interval),
    "set_transaction_retention": ("delta.setTransactionRetentionDuration", parse_interval),
    "drop_feature_retention": (
        "delta.dropFeatureTruncateHistory.retentionDuration",
        parse_interval,
    ),
    "require_checkpoint_protection_before_version": (
        "delta.requireCheckpointProtectionBeforeVersion",
        integer_parser(least=0),
    ),
    "column_mapping_mode": ("delta.columnMapping.mode", str),
    "column_mapping_max_column_id": ("delta.columnMapping.maxColumnId", integer_parser(least=0)),
    "enable_change_data_feed": ("delta.enableChangeDataFeed", parse_boolean),
    "enable_deletion_vectors": ("delta.enableDeletionVectors", parse_boolean),
    "enable_iceberg_compat_v1": ("delta.enableIcebergCompatV1", parse_boolean),
    "enable_iceberg_compat_v2": ("delta.enableIcebergCompatV2", parse_boolean),
    "enable_iceberg_compat_v3": ("delta.enableIcebergCompatV3", parse_boolean),
    "enable_in_commit_timestamps": ("delta.enableInCommitTimestamps", parse_boolean),
    "in_commit_timestamp_enablement_version": (
        "delta.inCommitTimestampEnablementVersion",
        integer_parser(least=0),
    ),
    "in_commit_timestamp_enablement_timestamp": (
        "delta.inCommitTimestampEnablementTimestamp",
        integer_parser(least=0),
    ),
    "enable_row_tracking": ("delta.enableRowTracking", parse_boolean),
    "row_tracking_suspended": ("delta.rowTrackingSuspended", parse_boolean),
    "materialized_row_id_column": ("delta.rowTracking.materializedRowIdColumnName", str),
    "materialized_row_commit_version_column": (
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        str,
    ),
    "enable_type_widening": ("delta.enableTypeWidening", parse_boolean),
    "data_skipping_num_indexed_columns": (
        "delta.dataSkippingNumIndexedCols",
        integer_parser(least=-1),
    ),
    "data_skipping_stats_columns": ("delta.dataSkippingStatsColumns", str),
    "target_file_size": ("delta.targetFileSize", parse_bytes),
    "parquet_compression_codec": ("delta.parquet.compression.codec", str),
    "parquet_format_version": ("delta.parquet.format.version", str),
}
"""For each field the key in the configuration and how its text is read."""

PARSERS: Mapping[str, Callable[[str], Any]] = {key: parse for key, parse in _PROPERTIES.values()}
"""How the text of each property that `TableProperties` knows is read, by its key."""
