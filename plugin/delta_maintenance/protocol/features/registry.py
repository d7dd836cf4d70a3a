"""Table features: the requirements of a protocol, and the support of this release.

Implements "Protocol Evolution" and "Table Features". `FEATURES` is the union of the newest protocol
text, its RFCs and the names that released engines wrote, because the protocol's appendix of valid
names is incomplete. A table *supports* a feature if its protocol lists or implies it. Whether the
feature is *active* depends on table properties and is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions.model import Protocol

MAX_READER_VERSION = 3
MAX_WRITER_VERSION = 7


class Operation(Enum):
    """The kinds of operation that the support of features distinguishes."""

    READ = "read"
    """Read the state in the log; data files are not opened."""
    CHECKPOINT = "checkpoint"
    CHECKSUM = "checksum"
    COMPACT_LOG = "compact-log"
    CLEAN_LOG = "clean-log"
    CLEAN_STAGED = "clean-staged"
    """Delete the staged files of commits that are published."""
    VACUUM = "vacuum"
    COMMIT = "commit"
    """Add a version that neither rewrites data nor changes properties or protocol."""
    CHANGE_METADATA = "change-metadata"
    """Commit other table properties or another protocol."""
    REWRITE_DATA = "rewrite-data"
    """Write data files that contain rows of existing ones."""


MAINTENANCE_PERMISSIONS: Mapping[Operation, str] = {
    Operation.CLEAN_LOG: "METADATA_CLEANUP",
    Operation.CLEAN_STAGED: "METADATA_CLEANUP",
    Operation.VACUUM: "DATA_CLEANUP",
    Operation.COMMIT: "DATA_REORGANIZATION",
    Operation.REWRITE_DATA: "DATA_REORGANIZATION",
}
"""What the catalog of a catalog-managed table must permit, as it calls it.

Checkpoints, log compactions and version checksums need no permission ("Maintenance Operations on
Catalog-managed Tables"). A change of metadata is no maintenance but an ordinary commit.
"""


class FeatureKind(Enum):
    """The clients that must support a feature."""

    READER_WRITER = "reader-writer"
    """Readers and writers; listed in both lists of the protocol."""
    WRITER = "writer"
    """Writers; listed only in `writerFeatures`, and never prevents reading."""


COMMITS_THROUGH_CATALOGS = "wait for a release that commits through catalogs"
"""The remedy for an operation that the catalog may permit, and that this release does not have."""
_OTHER_ENGINE = "use an engine or a newer release that supports this operation on such tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeature:
    """A table feature and its support in this release."""

    name: str
    kind: FeatureKind
    operations: frozenset[Operation]
    """The operations that this release supports on a table with the feature."""
    legacy_reader_version: int | None = None
    """The lowest reader version that, with the writer version, implies the feature."""
    legacy_writer_version: int | None = None
    """The lowest writer version below 7 that implies the feature."""
    requires: tuple[str, ...] = ()
    """Features that must be supported as well; only direct requirements."""
    aliases: tuple[str, ...] = ()
    """Draft and preview names with the same meaning; read but never written."""
    note: str = ""
    """The reason why operations are not supported, as a short clause for messages."""
    remedy: str = _OTHER_ENGINE
    """The remedy if an operation is not supported because of this feature alone."""


def supported_features(protocol: Protocol) -> frozenset[str]:
    """The features that the table supports, including those that legacy versions imply.

    Aliases are returned as final names and unknown names unchanged. A name in only one of the two
    lists counts, because some real tables omit the other. Column mapping requires reader version 2
    even if it is listed.
    """
    supported = set()
    for name in _listed_features(protocol) | _implied_features(protocol):
        feature = find_feature(name)
        if feature is None:
            supported.add(name)
        elif (feature.legacy_reader_version or 0) <= protocol.min_reader_version:
            supported.add(feature.name)
    return frozenset(supported)


def supports(protocol: Protocol, feature: str) -> bool:
    """Whether the table supports `feature`, a final name."""
    return feature in supported_features(protocol)


def find_feature(name: str) -> TableFeature | None:
    """The feature with that final name or alias, or None if it is unknown. Case-sensitive."""
    return _BY_NAME.get(name)


def binds_readers(name: str) -> bool:
    """Whether a known feature concerns readers as well as writers."""
    feature = find_feature(name)
    return feature is not None and feature.kind is FeatureKind.READER_WRITER


def with_requirements(features: Iterable[str]) -> frozenset[str]:
    """`features` and all features that they require, directly or indirectly."""
    required: set[str] = set()
    pending = list(features)
    while pending:
        name = pending.pop()
        if name not in required:
            required.add(name)
            feature = find_feature(name)
            pending.extend(feature.requires if feature is not None else ())
    return frozenset(required)


def without_features(protocol: Protocol, names: Collection[str]) -> Protocol:
    """The protocol without the features `names` (final names) in its lists; versions stay."""

    def kept(listed: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if listed is None:
            return None
        final = {name: find_feature(name) for name in listed}
        return tuple(
            n for n, feature in final.items() if (feature.name if feature else n) not in names
        )

    return replace(
        protocol,
        reader_features=kept(protocol.reader_features),
        writer_features=kept(protocol.writer_features),
    )


def misplaced_features(protocol: Protocol) -> frozenset[str]:
    """Names that the protocol lists in the wrong list; readable, but reported as a finding.

    Features for readers and writers belong in both lists, features for writers only in
    `writerFeatures`. At reader version 2 there is no reader list for column mapping.
    """
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    misplaced = {name for name in readers if name not in writers or _kind(name) is _WRITER}
    for name in writers - readers:
        feature = find_feature(name)
        if (
            feature is not None
            and feature.kind is _BOTH
            and feature.legacy_reader_version != protocol.min_reader_version
        ):
            misplaced.add(name)
    return frozenset(misplaced)


def check_protocol(protocol: Protocol) -> None:
    """Raises `CorruptTableError` if versions and feature lists contradict ("Protocol Evolution").

    A list exists if and only if its version is 3 or 7, and reader version 3 requires writer
    version 7. Higher versions are valid here; `require_supported` refuses them.
    """
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if reader < 1 or writer < 1:
        raise CorruptTableError(f"the protocol has the versions {_pair(protocol)}, below 1")
    if reader >= MAX_READER_VERSION and writer < MAX_WRITER_VERSION:
        raise CorruptTableError(
            f"reader version {reader} requires writer version {MAX_WRITER_VERSION}, not {writer}"
        )
    for version, listing, key, listed in (
        (reader, MAX_READER_VERSION, "readerFeatures", protocol.reader_features),
        (writer, MAX_WRITER_VERSION, "writerFeatures", protocol.writer_features),
    ):
        if version == listing and listed is None:
            raise CorruptTableError(f"protocol {_pair(protocol)} lacks {key}")
        if version < listing and listed is not None:
            raise CorruptTableError(f"protocol {_pair(protocol)} must not have {key}")


def require_supported(
    protocol: Protocol,
    operation: Operation,
    *,
    table: str | None = None,
    version: int | None = None,
) -> None:
    """Raises unless this release fully supports `operation` under `protocol`.

    Reading requires support for all reader features. Every other operation requires support for the
    writer features as well: an unknown writer feature may have written something to the log that a
    checkpoint would lose.

    Raises `CorruptTableError` for a contradictory protocol and `UnsupportedFeatureError`, with all
    missing features, for an unsupported one.
    """
    try:
        check_protocol(protocol)
        _require_versions(protocol, operation)
        _require_features(protocol, operation)
    except (CorruptTableError, UnsupportedFeatureError) as error:
        raise error.locate(table=table, version=version) from None


_EVERYTHING = frozenset(Operation)
_NO_REWRITE = _EVERYTHING - {Operation.REWRITE_DATA}
_LOG_AND_FILES = _NO_REWRITE - {Operation.CHANGE_METADATA}
_READ_ONLY = frozenset({Operation.READ})
_WITHOUT_CATALOG = _READ_ONLY | {
    Operation.CHECKPOINT,
    Operation.CHECKSUM,
    Operation.COMPACT_LOG,
    Operation.CLEAN_STAGED,
}
_NOTHING: frozenset[Operation] = frozenset()

_BOTH = FeatureKind.READER_WRITER
_WRITER = FeatureKind.WRITER

_ICEBERG_NOTE = "rewriting data and changing properties need rules for Iceberg"

FEATURES: tuple[TableFeature, ...] = (
    TableFeature(name="appendOnly", kind=_WRITER, operations=_EVERYTHING, legacy_writer_version=2),
    TableFeature(
        name="invariants",
        kind=_WRITER,
        operations=_EVERYTHING,
        legacy_writer_version=2,
        aliases=("columnInvariants",),
    ),
    TableFeature(
        name="checkConstraints", kind=_WRITER, operations=_EVERYTHING, legacy_writer_version=3
    ),
    TableFeature(
        name="changeDataFeed", kind=_WRITER, operations=_EVERYTHING, legacy_writer_version=4
    ),
    TableFeature(
        name="generatedColumns", kind=_WRITER, operations=_EVERYTHING, legacy_writer_version=4
    ),
    TableFeature(
        name="columnMapping",
        kind=_BOTH,
        operations=_EVERYTHING,
        legacy_reader_version=2,
        legacy_writer_version=5,
    ),
    TableFeature(
        name="identityColumns", kind=_WRITER, operations=_EVERYTHING, legacy_writer_version=6
    ),
    TableFeature(name="allowColumnDefaults", kind=_WRITER, operations=_EVERYTHING),
    TableFeature(name="deletionVectors", kind=_BOTH, operations=_EVERYTHING),
    TableFeature(name="domainMetadata", kind=_WRITER, operations=_EVERYTHING),
    TableFeature(
        name="rowTracking", kind=_WRITER, operations=_EVERYTHING, requires=("domainMetadata",)
    ),
    TableFeature(
        name="timestampNtz", kind=_BOTH, operations=_EVERYTHING, aliases=("timestampNTZ",)
    ),
    TableFeature(name="v2Checkpoint", kind=_BOTH, operations=_EVERYTHING),
    TableFeature(name="vacuumProtocolCheck", kind=_BOTH, operations=_EVERYTHING),
    TableFeature(name="inCommitTimestamp", kind=_WRITER, operations=_EVERYTHING),
    TableFeature(
        name="clustering", kind=_WRITER, operations=_EVERYTHING, requires=("domainMetadata",)
    ),
    TableFeature(
        name="typeWidening", kind=_BOTH, operations=_EVERYTHING, aliases=("typeWidening-preview",)
    ),
    TableFeature(
        name="variantType", kind=_BOTH, operations=_EVERYTHING, aliases=("variantType-preview",)
    ),
    TableFeature(
        name="variantShredding",
        kind=_BOTH,
        operations=_EVERYTHING,
        requires=("variantType",),
        aliases=("variantShredding-preview",),
    ),
    TableFeature(
        name="icebergCompatV1", kind=_WRITER, operations=_EVERYTHING, requires=("columnMapping",)
    ),
    TableFeature(
        name="icebergCompatV2", kind=_WRITER, operations=_EVERYTHING, requires=("columnMapping",)
    ),
    TableFeature(
        name="catalogManaged",
        kind=_BOTH,
        operations=_WITHOUT_CATALOG,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
        aliases=("catalogOwned-preview",),
        note="this release neither commits through catalogs nor deletes what their tables need",
        remedy=COMMITS_THROUGH_CATALOGS,
    ),
    # Features without a description, or described only by an RFC.
    TableFeature(name="checkpointProtection", kind=_WRITER, operations=_EVERYTHING),
    TableFeature(name="materializePartitionColumns", kind=_WRITER, operations=_EVERYTHING),
    TableFeature(
        name="geospatial",
        kind=_BOTH,
        operations=_NO_REWRITE,
        aliases=("geospatial-dev",),
        note="geometries cannot be rewritten",
    ),
    TableFeature(
        name="collations",
        kind=_WRITER,
        operations=_NO_REWRITE,
        requires=("domainMetadata",),
        aliases=("collations-preview",),
        note="new data files need statistics per collation",
    ),
    TableFeature(
        name="icebergCompatV3",
        kind=_WRITER,
        operations=_LOG_AND_FILES,
        requires=("columnMapping", "rowTracking"),
        note=_ICEBERG_NOTE,
    ),
    TableFeature(
        name="icebergWriterCompatV1",
        kind=_WRITER,
        operations=_LOG_AND_FILES,
        requires=("icebergCompatV2",),
        note=_ICEBERG_NOTE,
    ),
    TableFeature(
        name="icebergWriterCompatV3",
        kind=_WRITER,
        operations=_LOG_AND_FILES,
        requires=("icebergCompatV3",),
        note=_ICEBERG_NOTE,
    ),
    TableFeature(
        name="coordinatedCommits-preview",
        kind=_WRITER,
        operations=_READ_ONLY,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
        aliases=("managedCommit-preview", "managed-commit-dev"),
        note="a coordinator may have newer commits than the log",
    ),
    TableFeature(
        name="inCommitTimestamp-preview",
        kind=_WRITER,
        operations=_READ_ONLY,
        note="a preview with different property names",
    ),
    TableFeature(
        name="liquid",
        kind=_WRITER,
        operations=_READ_ONLY,
        note="a predecessor of clustering without a specification",
    ),
    TableFeature(
        name="rowIds",
        kind=_WRITER,
        operations=_READ_ONLY,
        aliases=("delta.rowIds",),
        note="a 2023 draft of row tracking; migrate to rowTracking first",
    ),
    TableFeature(
        name="columnMappingUsageTracking",
        kind=_WRITER,
        operations=_READ_ONLY,
        requires=("columnMapping",),
        note="a proposal",
    ),
    TableFeature(
        name="redirectWriterOnly-preview",
        kind=_WRITER,
        operations=_READ_ONLY,
        note="writers must write to another table",
    ),
    TableFeature(
        name="redirectReaderWriter-preview",
        kind=_BOTH,
        operations=_NOTHING,
        note="the contents are in another table",
    ),
    TableFeature(name="timestampNanos", kind=_BOTH, operations=_NOTHING, note="a proposal"),
    TableFeature(
        name="adaptiveMetadata-preview",
        kind=_BOTH,
        operations=_NOTHING,
        requires=(
            "catalogManaged",
            "columnMapping",
            "deletionVectors",
            "domainMetadata",
            "rowTracking",
        ),
        aliases=("adaptiveMetadata",),
        note="the state of the table is not in the log",
    ),
)
"""All features that this release knows. Support can be removed by changing one value in a row."""

_BY_NAME = {name: feature for feature in FEATURES for name in (feature.name, *feature.aliases)}


def _require_versions(protocol: Protocol, operation: Operation) -> None:
    missing = []
    if protocol.min_reader_version > MAX_READER_VERSION:
        missing.append(
            f"reader version {protocol.min_reader_version} (supported: 1 to {MAX_READER_VERSION})"
        )
    if operation is not Operation.READ and protocol.min_writer_version > MAX_WRITER_VERSION:
        missing.append(
            f"writer version {protocol.min_writer_version} (supported: 1 to {MAX_WRITER_VERSION})"
        )
    if missing:
        raise UnsupportedFeatureError(
            f"{operation.value} is not supported with {' and '.join(missing)}",
            remedy="use an engine or a newer release that supports this protocol",
        )


def _require_features(protocol: Protocol, operation: Operation) -> None:
    if operation is Operation.READ:
        names = set(protocol.reader_features or ())
        names |= {name for name in protocol.writer_features or () if _kind(name) is _BOTH}
    else:
        names = _listed_features(protocol) | _implied_features(protocol)
    missing = {
        name: reason
        for name in sorted(names)
        if (reason := _reason_against(name, operation)) is not None
    }
    if missing:
        listed = [f"{name} ({reason})" for name, reason in missing.items()]
        only = find_feature(next(iter(missing))) if len(missing) == 1 else None
        raise UnsupportedFeatureError(
            f"{operation.value} is not supported with {_plural('table feature', listed)} "
            f"{', '.join(listed)}",
            remedy=_OTHER_ENGINE if only is None else only.remedy,
        )
    if operation is Operation.READ:
        return
    unwritable = sorted(set(protocol.reader_features or ()) - set(protocol.writer_features or ()))
    if unwritable:
        raise UnsupportedFeatureError(
            f"{operation.value} is not supported because readerFeatures lists "
            f"{', '.join(unwritable)} and writerFeatures does not",
            remedy="repair the protocol of the table first",
        )


def _reason_against(name: str, operation: Operation) -> str | None:
    feature = find_feature(name)
    if feature is None:
        return "unknown"
    return None if operation in feature.operations else feature.note


def _listed_features(protocol: Protocol) -> set[str]:
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


def _implied_features(protocol: Protocol) -> set[str]:
    if protocol.min_writer_version >= MAX_WRITER_VERSION:
        return set()
    return {
        feature.name
        for feature in FEATURES
        if feature.legacy_writer_version is not None
        and feature.legacy_writer_version <= protocol.min_writer_version
        and (feature.legacy_reader_version or 0) <= protocol.min_reader_version
    }


def _kind(name: str) -> FeatureKind | None:
    feature = find_feature(name)
    return None if feature is None else feature.kind


def _pair(protocol: Protocol) -> str:
    return f"({protocol.min_reader_version}, {protocol.min_writer_version})"


def _plural(noun: str, items: list[str]) -> str:
    return noun if len(items) == 1 else f"{noun}s"
