"""Table properties: their names, their allowed values, and the table feature each activates.

The names are those of Delta Spark and of the protocol's sections on features; the protocol has no
list of all properties. The rules here hold for a property on every table.
`delta_maintenance.protocol.changes.enable` decides the effects on one table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from delta_maintenance.errors import InvalidRequestError, RefusedError, closest
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.properties import PARSERS, integer_parser, parse_boolean
from delta_maintenance.protocol.features.registry import supports
from delta_maintenance.quantities import parse_interval

FEATURE_PREFIX = "delta.feature."
CONSTRAINT_PREFIX = "delta.constraints."
READER_VERSION = "delta.minReaderVersion"
WRITER_VERSION = "delta.minWriterVersion"
IGNORE_DEFAULTS = "delta.ignoreProtocolDefaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRule:
    """The rules of one property."""

    name: str
    parse: Callable[[str], Any]
    """Raises `InvalidRequestError` for an invalid value."""
    feature: str | None = None
    """The table feature that a value other than the neutral one activates."""
    neutral: str = "false"
    """The value that means the same as no value; compared case-insensitively."""
    managed_by: str | None = None
    """The only writer of the property, if users cannot set it."""
    instead: str | None = None
    """The remedy for a request to set the property to a value other than the neutral one."""

    def activates(self, text: str | None) -> bool:
        """Whether this value activates the feature of the property."""
        return self.feature is not None and text is not None and text.lower() != self.neutral


def find_rule(name: str) -> PropertyRule | None:
    """The rule of the property with that exact name, or None for an unknown property."""
    return _BY_NAME.get(name)


def require_settable(name: str, value: str) -> None:
    """Refuses properties that users cannot set, and invalid values.

    Properties without the prefix `delta.` belong to the users and are not checked. Raises
    `InvalidRequestError` for an unknown name or an invalid value, and `RefusedError` for a property
    that users cannot set.
    """
    if not _is_reserved(name):
        return
    if name.startswith(CONSTRAINT_PREFIX):
        raise RefusedError(
            f"{name} is a constraint, which is valid only after all rows are checked",
            remedy="use add-constraint, which checks them",
        )
    rule = find_rule(name)
    if rule is None:
        raise InvalidRequestError(f"unknown property {name}", remedy=_suggestion(name))
    _require_user_managed(rule)
    try:
        rule.parse(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error.problem}", remedy=error.remedy) from None
    if rule.instead is not None and value.lower() != rule.neutral:
        raise RefusedError(f"{name} cannot be set to {value} here", remedy=rule.instead)


def require_removable(name: str) -> None:
    """Raises `RefusedError` for a property that only its manager may remove.

    Unknown properties and constraints can be removed.
    """
    rule = find_rule(name)
    if rule is not None:
        _require_user_managed(rule)


def controls_protocol(name: str) -> bool:
    """Whether the property requests a protocol change and is never stored."""
    return name.startswith(FEATURE_PREFIX) or name in (
        READER_VERSION,
        WRITER_VERSION,
        IGNORE_DEFAULTS,
    )


def active_properties(protocol: Protocol, configuration: Mapping[str, str]) -> dict[str, str]:
    """The properties that activate a feature, mapped to their features ("Active Features")."""
    return {
        rule.name: rule.feature
        for rule in RULES
        if rule.feature is not None
        and rule.activates(configuration.get(rule.name))
        and supports(protocol, rule.feature)
    }


def _is_reserved(name: str) -> bool:
    # Case-insensitive: engines ignore other spellings, so setting one would have no effect.
    return name.lower().startswith("delta.")


def _require_user_managed(rule: PropertyRule) -> None:
    if rule.managed_by is not None:
        raise RefusedError(
            f"{rule.name} is managed by {rule.managed_by} and cannot be set or removed directly",
            remedy="omit it",
        )


def _suggestion(name: str) -> str:
    if name == "delta.enableChangeDataCapture":
        return "use delta.enableChangeDataFeed"
    meant = closest(name, (rule.name for rule in RULES), likeness=0.8)
    if meant is not None:
        return f"use {meant}"
    return "names that start with delta. are reserved; use another prefix for your own properties"


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise InvalidRequestError(f"{text!r} is not one of {', '.join(values)}")
        return text

    return parse


def _matching(pattern: str, subject: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if re.fullmatch(pattern, text, re.IGNORECASE) is None:
            raise InvalidRequestError(f"{text!r} is not a {subject}")
        return text

    return parse


def _known(name: str, **options: Any) -> PropertyRule:
    return PropertyRule(name=name, parse=PARSERS[name], **options)


def _flag(name: str, **options: Any) -> PropertyRule:
    return PropertyRule(name=name, parse=parse_boolean, **options)


_ICEBERG = "enable it with Delta Spark, which rewrites the files as Iceberg requires"
_IN_COMMIT_TIMESTAMPS = "in-commit timestamps"

RULES: tuple[PropertyRule, ...] = (
    # Retention and maintenance.
    _known("delta.logRetentionDuration"),
    _known("delta.deletedFileRetentionDuration"),
    _known("delta.timeUntilArchived"),
    _known("delta.setTransactionRetentionDuration"),
    _known("delta.dropFeatureTruncateHistory.retentionDuration"),
    PropertyRule(name="delta.checkpointRetentionDuration", parse=parse_interval),
    PropertyRule(name="delta.sampleRetentionDuration", parse=parse_interval),
    _known("delta.enableExpiredLogCleanup"),
    _flag("delta.enableFullRetentionRollback"),
    _known("delta.checkpointInterval"),
    _known("delta.checkpointPolicy", feature="v2Checkpoint", neutral="classic"),
    _known("delta.checkpoint.writeStatsAsJson"),
    _known("delta.checkpoint.writeStatsAsStruct"),
    _known("delta.requireCheckpointProtectionBeforeVersion", managed_by="drop-feature"),
    # Behaviour of writers.
    _known("delta.appendOnly", feature="appendOnly"),
    _known("delta.enableChangeDataFeed", feature="changeDataFeed"),
    _known("delta.enableDeletionVectors", feature="deletionVectors"),
    _known("delta.enableTypeWidening", feature="typeWidening"),
    _flag("delta.enableVariantShredding", feature="variantShredding"),
    _flag("delta.enableMaterializePartitionColumnsFeature", feature="materializePartitionColumns"),
    _flag("delta.writePartitionColumnsToParquet"),
    PropertyRule(name="delta.isolationLevel", parse=_one_of("Serializable")),
    _known("delta.dataSkippingNumIndexedCols"),
    _known("delta.dataSkippingStatsColumns"),
    PropertyRule(name="delta.dataSkippingStringPrefixLength", parse=integer_parser(minimum=0)),
    PropertyRule(
        name="delta.parquet.compression.codec",
        parse=_matching("uncompressed|none|snappy|gzip|brotli|lz4|lz4_raw|zstd", "Parquet codec"),
    ),
    PropertyRule(
        name="delta.parquet.format.version",
        parse=_matching(r"1\.0\.0|2\.[0-9]+\.[0-9]+", "Parquet format version"),
    ),
    PropertyRule(name="delta.targetFileSize", parse=_matching("[0-9]+ *([kmgt]?b?)?", "file size")),
    _flag("delta.tuneFileSizesForRewrites"),
    _flag("delta.autoOptimize"),
    _flag("delta.autoOptimize.autoCompact"),
    _flag("delta.autoOptimize.optimizeWrite"),
    _flag("delta.randomizeFilePrefixes"),
    PropertyRule(name="delta.randomPrefixLength", parse=integer_parser(minimum=1)),
    _flag("delta.compatibility.symlinkFormatManifest.enabled"),
    # Column mapping.
    PropertyRule(
        name="delta.columnMapping.mode",
        parse=_one_of("none", "id", "name"),
        feature="columnMapping",
        neutral="none",
    ),
    _known("delta.columnMapping.maxColumnId", managed_by="column mapping"),
    # In-commit timestamps.
    _known("delta.enableInCommitTimestamps", feature="inCommitTimestamp"),
    _known("delta.inCommitTimestampEnablementVersion", managed_by=_IN_COMMIT_TIMESTAMPS),
    _known("delta.inCommitTimestampEnablementTimestamp", managed_by=_IN_COMMIT_TIMESTAMPS),
    # Row tracking.
    _known("delta.enableRowTracking", feature="rowTracking"),
    _known("delta.rowTrackingSuspended"),
    _known("delta.rowTracking.materializedRowIdColumnName", managed_by="row tracking"),
    _known("delta.rowTracking.materializedRowCommitVersionColumnName", managed_by="row tracking"),
    # Iceberg.
    _known("delta.enableIcebergCompatV1", feature="icebergCompatV1"),
    _known("delta.enableIcebergCompatV2", feature="icebergCompatV2"),
    _known("delta.enableIcebergCompatV3", feature="icebergCompatV3", instead=_ICEBERG),
    PropertyRule(
        name="delta.universalFormat.enabledFormats", parse=str, neutral="", instead=_ICEBERG
    ),
    _flag("delta.universalFormat.iceberg.atomicConversion.supported"),
    # How Delta Spark converts and clones tables of Iceberg.
    _flag("delta.castIcebergTimeType"),
    _flag("delta.ignoreIcebergBucketPartition"),
)
"""All known table properties except constraints."""

_BY_NAME = {rule.name: rule for rule in RULES}
