"""Which table properties exist, what their values may be, and which table feature each activates.

The names are those of Delta Spark and of the protocol's sections on features; no text of the
protocol lists them. What is here is true of a property by itself: what setting it does to a table
is a matter of `feature_enablement`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.properties import (
    PARSERS,
    integer_parser,
    parse_boolean,
    parse_interval,
)
from delta_maintenance.protocol.features.registry import supports

FEATURE_PREFIX = "delta.feature."
CONSTRAINT_PREFIX = "delta.constraints."
READER_VERSION = "delta.minReaderVersion"
WRITER_VERSION = "delta.minWriterVersion"
IGNORE_DEFAULTS = "delta.ignoreProtocolDefaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRule:
    """What is true of one property on every table."""

    name: str
    parse: Callable[[str], Any]
    """Raises `InvalidRequestError` for a text that is no value of the property."""
    feature: str | None = None
    """The table feature that a value other than the neutral one activates."""
    neutral: str = "false"
    """The value that is as good as none, whatever its case."""
    kept_by: str | None = None
    """Who alone writes the property, where users do not."""
    instead: str | None = None
    """What to do instead of setting the property to anything but its neutral value."""

    def activates(self, text: str | None) -> bool:
        """Whether this value asks for the feature of the property."""
        return self.feature is not None and text is not None and text.lower() != self.neutral


def find_rule(name: str) -> PropertyRule | None:
    """The rule of the property of that exact name; None for an unknown one."""
    return _BY_NAME.get(name)


def require_settable(name: str, value: str) -> None:
    """Refuses a property that users do not set, and a value that it cannot have.

    Properties without `delta.` are the users' own and free. `InvalidRequestError` for an unknown
    name or a malformed value, `RefusedError` for a property that is kept by something else.
    """
    if not _is_reserved(name):
        return
    if name.startswith(CONSTRAINT_PREFIX):
        raise RefusedError(
            f"{name} is a constraint, which holds only if all rows were looked at",
            remedy="use add-constraint, which looks at them",
        )
    rule = find_rule(name)
    if rule is None:
        raise InvalidRequestError(f"there is no property {name}", remedy=_suggestion(name))
    _require_users(rule)
    try:
        rule.parse(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error.problem}", remedy=error.remedy) from None
    if rule.instead is not None and value.lower() != rule.neutral:
        raise RefusedError(f"{name} cannot be set to {value} here", remedy=rule.instead)


def require_removable(name: str) -> None:
    """Refuses to remove a property that is kept by something else than users.

    An unknown property may go, for whoever added it can; and so may a constraint.
    """
    rule = find_rule(name)
    if rule is not None:
        _require_users(rule)


def steers_protocol(name: str) -> bool:
    """Whether the key asks for a protocol and is never stored."""
    return name.startswith(FEATURE_PREFIX) or name in (
        READER_VERSION,
        WRITER_VERSION,
        IGNORE_DEFAULTS,
    )


def active_properties(protocol: Protocol, configuration: Mapping[str, str]) -> dict[str, str]:
    """The properties that activate a feature, with their features ("Active Features")."""
    return {
        rule.name: rule.feature
        for rule in RULES
        if rule.feature is not None
        and rule.activates(configuration.get(rule.name))
        and supports(protocol, rule.feature)
    }


def _is_reserved(name: str) -> bool:
    # In any case: no engine looks at another spelling, so that it would only seem to be set.
    return name.lower().startswith("delta.")


def _require_users(rule: PropertyRule) -> None:
    if rule.kept_by is not None:
        raise RefusedError(
            f"{rule.name} is kept by {rule.kept_by} and not set by hand",
            remedy="leave it out",
        )


def _suggestion(name: str) -> str:
    if name == "delta.enableChangeDataCapture":
        return "write delta.enableChangeDataFeed"
    by_case = {rule.name.lower(): rule.name for rule in RULES}
    close = get_close_matches(name.lower(), by_case, n=1, cutoff=0.8)
    if close:
        return f"write {by_case[close[0]]}"
    return "names with delta. are reserved; properties of your own take another prefix"


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise InvalidRequestError(f"{text!r} is none of {', '.join(values)}")
        return text

    return parse


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if re.fullmatch(pattern, text, re.IGNORECASE) is None:
            raise InvalidRequestError(f"{text!r} is no {what}")
        return text

    return parse


def _known(name: str, **more: Any) -> PropertyRule:
    return PropertyRule(name=name, parse=PARSERS[name], **more)


def _flag(name: str, **more: Any) -> PropertyRule:
    return PropertyRule(name=name, parse=parse_boolean, **more)


_ICEBERG = "enable it with Delta Spark, which rewrites the files as Iceberg needs them"
_TICK = "in-commit timestamps"

RULES: tuple[PropertyRule, ...] = (
    # Retention and maintenance.
    _known("delta.logRetentionDuration"),
    _known("delta.deletedFileRetentionDuration"),
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
    _known("delta.requireCheckpointProtectionBeforeVersion", kept_by="drop-feature"),
    # What writers do.
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
    PropertyRule(name="delta.dataSkippingStringPrefixLength", parse=integer_parser(least=0)),
    PropertyRule(
        name="delta.parquet.compression.codec",
        parse=_matching("uncompressed|none|snappy|gzip|brotli|lz4|lz4_raw|zstd", "Parquet codec"),
    ),
    PropertyRule(
        name="delta.parquet.format.version",
        parse=_matching(r"1\.0\.0|2\.[0-9]+\.[0-9]+", "version of the Parquet format"),
    ),
    PropertyRule(
        name="delta.targetFileSize", parse=_matching("[0-9]+ *([kmgt]?b?)?", "size of a file")
    ),
    _flag("delta.tuneFileSizesForRewrites"),
    _flag("delta.autoOptimize"),
    _flag("delta.autoOptimize.autoCompact"),
    _flag("delta.autoOptimize.optimizeWrite"),
    _flag("delta.randomizeFilePrefixes"),
    PropertyRule(name="delta.randomPrefixLength", parse=integer_parser(least=1)),
    _flag("delta.compatibility.symlinkFormatManifest.enabled"),
    # Column mapping.
    PropertyRule(
        name="delta.columnMapping.mode",
        parse=_one_of("none", "id", "name"),
        feature="columnMapping",
        neutral="none",
    ),
    _known("delta.columnMapping.maxColumnId", kept_by="column mapping"),
    # In-commit timestamps.
    _known("delta.enableInCommitTimestamps", feature="inCommitTimestamp"),
    _known("delta.inCommitTimestampEnablementVersion", kept_by=_TICK),
    _known("delta.inCommitTimestampEnablementTimestamp", kept_by=_TICK),
    # Row tracking.
    _known("delta.enableRowTracking", feature="rowTracking"),
    _known("delta.rowTrackingSuspended"),
    _known("delta.rowTracking.materializedRowIdColumnName", kept_by="row tracking"),
    _known("delta.rowTracking.materializedRowCommitVersionColumnName", kept_by="row tracking"),
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
"""Every property that a table may have, but for constraints."""

_BY_NAME = {rule.name: rule for rule in RULES}
