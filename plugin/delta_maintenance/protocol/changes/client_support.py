"""Which clients can read and write a table, and which lose access when its protocol changes.

The table has one row per client release. It states what the maintainers of the client publish and
what runs against the client showed. Everything else is `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.features.registry import (
    FEATURES,
    FeatureKind,
    find_feature,
    supported_features,
)


class Support(Enum):
    """Whether a client can read or write a table."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Table features that a release of a client is known to support."""

    name: str
    reads: frozenset[str]
    """Features for readers and writers with which it reads a table."""
    writes: frozenset[str]
    """Features with which it writes a table."""
    unknown: frozenset[str] = frozenset()
    """Features whose support is not known. It supports no feature outside the three sets."""
    reader_version: int = 3
    """The highest reader version that it supports."""
    writer_version: int = 7
    """The highest writer version that it supports."""
    checks_use: bool = False
    """Whether a writer feature that a legacy version implies blocks it only if the table uses the
    feature. A protocol does not say whether the table does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """The effect of a protocol change on one client that loses access."""

    client: str
    reading: tuple[Support, Support]
    """Before and after."""
    writing: tuple[Support, Support]
    """Before and after."""
    features: tuple[str, ...]
    """Features that block the client afterwards and did not before; empty if a version does."""


def impacts(before: Protocol, after: Protocol) -> tuple[Impact, ...]:
    """The clients that lose, or may lose, read or write access, in the order of `CLIENTS`."""
    client_impacts = []
    for client in CLIENTS:
        reading = _reading(client, before)[0], _reading(client, after)[0]
        writing = _writing(client, before)[0], _writing(client, after)[0]
        if _loses(reading) or _loses(writing):
            obstacles = {*_reading(client, after)[1], *_writing(client, after)[1]}
            obstacles_before = {*_reading(client, before)[1], *_writing(client, before)[1]}
            client_impacts.append(
                Impact(
                    client=client.name,
                    reading=reading,
                    writing=writing,
                    features=tuple(sorted(obstacles - obstacles_before)),
                )
            )
    return tuple(client_impacts)


def _loses(access: tuple[Support, Support]) -> bool:
    before, after = access
    return before is not Support.NO and after is not Support.YES and before is not after


def _reading(client: Client, protocol: Protocol) -> tuple[Support, frozenset[str]]:
    binding = frozenset(filter(_binds_readers, supported_features(protocol)))
    if protocol.min_reader_version > client.reader_version:
        return Support.NO, binding - client.reads
    return _access(binding - client.reads, client)


def _writing(client: Client, protocol: Protocol) -> tuple[Support, frozenset[str]]:
    missing = supported_features(protocol) - client.writes
    if (
        protocol.min_reader_version > client.reader_version
        or protocol.min_writer_version > client.writer_version
    ):
        return Support.NO, missing
    if client.checks_use and protocol.writer_features is None and missing:
        return Support.UNKNOWN, frozenset()
    return _access(missing, client)


def _access(missing: frozenset[str], client: Client) -> tuple[Support, frozenset[str]]:
    if missing - client.unknown:
        return Support.NO, missing - client.unknown
    return (Support.UNKNOWN if missing else Support.YES), missing


def _binds_readers(name: str) -> bool:
    feature = find_feature(name)
    return feature is None or feature.kind is FeatureKind.READER_WRITER


_BOTH = frozenset(f.name for f in FEATURES if f.kind is FeatureKind.READER_WRITER)
_BASIC = frozenset({"appendOnly", "invariants"})


def _releases(
    family: str,
    since: Mapping[str, Iterable[str]],
    *,
    unsupported_before: Iterable[str],
    preview: Mapping[str, Iterable[str]],
) -> list[Client]:
    """One row for each release in `since`, which maps releases to the features they introduced.

    `since` is ordered, and no release drops a feature. Only the features in `unsupported_before`
    are known to be missing from older releases. The features in `preview` appeared in a release
    under a preview name; no source states which later release supports the final name.
    """
    rows, features, doubtful = [], _BASIC, frozenset[str]()
    unstated = frozenset(f.name for f in FEATURES) - {
        *unsupported_before,
        *chain(*preview.values()),
    }
    for release, new_features in since.items():
        features |= frozenset(new_features)
        doubtful |= frozenset(preview.get(release, ()))
        rows.append(
            Client(
                name=f"{family} {release}",
                reads=features & _BOTH,
                writes=features,
                unknown=unstated | doubtful,
            )
        )
    return rows


_LEGACY = ("checkConstraints", "generatedColumns", "columnMapping", "changeDataFeed")

_DELTA_SPARK = {
    "2.4": (*_LEGACY, "deletionVectors", "timestampNtz"),
    "3.0": ("icebergCompatV1", "v2Checkpoint", "domainMetadata"),
    "3.1": ("icebergCompatV2", "clustering", "allowColumnDefaults"),
    "3.2": ("rowTracking",),
    "3.3": ("identityColumns", "inCommitTimestamp"),
    "4.0": ("typeWidening",),
    "4.4": (
        "vacuumProtocolCheck",
        "variantType",
        "variantShredding",
        "geospatial",
        "checkpointProtection",
        "materializePartitionColumns",
        "icebergCompatV3",
    ),
}
_NOT_IN_DELTA_SPARK = (
    "collations",
    "timestampNanos",
    "icebergWriterCompatV1",
    "icebergWriterCompatV3",
)
"""Release 4.4 refuses tables with these, so every release before it does."""
_DATABRICKS = {
    "12.2 LTS": (*_LEGACY, "identityColumns", "allowColumnDefaults", "deletionVectors"),
    "13.3 LTS": ("timestampNtz", "v2Checkpoint", "clustering", "domainMetadata", "icebergCompatV1"),
    "14.3 LTS": ("rowTracking", "icebergCompatV2"),
    "15.4 LTS": (),
    "16.4 LTS": ("checkpointProtection",),
}

_DELTA_RS_WRITES = frozenset(
    {
        *_BASIC,
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)

CLIENTS: tuple[Client, ...] = (
    Client(
        name="Delta Spark 2.0 to 2.2",
        reads=frozenset({"columnMapping"}),
        writes=frozenset({*_BASIC, *_LEGACY}),
        reader_version=2,
        writer_version=5,
    ),
    *_releases(
        "Delta Spark",
        _DELTA_SPARK,
        # The newest release was run; the facts about older releases are published ones.
        unsupported_before=chain(
            *(names for release, names in _DELTA_SPARK.items() if release != "4.4"),
            _NOT_IN_DELTA_SPARK,
        ),
        preview={"3.2": ("typeWidening",)},
    ),
    Client(
        name="Databricks Runtime 10.4 LTS",
        reads=frozenset({"columnMapping"}),
        writes=frozenset({*_BASIC, *_LEGACY, "identityColumns"}),
        reader_version=2,
        writer_version=6,
    ),
    *_releases(
        "Databricks Runtime",
        _DATABRICKS,
        unsupported_before=chain(*_DATABRICKS.values()),
        preview={"15.4 LTS": ("typeWidening", "variantType"), "16.4 LTS": ("collations",)},
    ),
    Client(
        name="delta-rs 1.6 (deltalake)",
        reads=frozenset(
            {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType"}
        ),
        writes=_DELTA_RS_WRITES,
    ),
    Client(
        name="delta-rs 1.6, to_pyarrow_table and to_pandas",
        reads=frozenset({"timestampNtz", "variantType"}),
        writes=_DELTA_RS_WRITES,
        # It refuses the feature if the protocol lists it for readers. With reader version 2 it
        # looks columns up by their logical names, which is wrong after a rename.
        unknown=frozenset({"columnMapping"}),
    ),
    Client(
        name="Polars 2.1",
        reads=frozenset({"deletionVectors", "timestampNtz", "variantType"}),
        writes=_DELTA_RS_WRITES,
    ),
    Client(
        # It only inserts rows. The kernel decides which features it writes with.
        name="DuckDB (delta extension, kernel 0.21)",
        reads=frozenset(
            {
                "columnMapping",
                "deletionVectors",
                "timestampNtz",
                "typeWidening",
                "v2Checkpoint",
                "vacuumProtocolCheck",
                "variantType",
            }
        ),
        writes=frozenset(
            {
                *_BASIC,
                "changeDataFeed",
                "clustering",
                "columnMapping",
                "deletionVectors",
                "domainMetadata",
                "inCommitTimestamp",
                "materializePartitionColumns",
                "rowTracking",
                "timestampNtz",
                "v2Checkpoint",
                "vacuumProtocolCheck",
                "variantType",
            }
        ),
        unknown=frozenset({"catalogManaged"}),
    ),
    Client(
        name="Trino",
        reads=frozenset(
            {
                "columnMapping",
                "deletionVectors",
                "timestampNtz",
                "typeWidening",
                "v2Checkpoint",
                "vacuumProtocolCheck",
            }
        ),
        writes=frozenset(
            {
                *_BASIC,
                "checkConstraints",
                "changeDataFeed",
                "columnMapping",
                "deletionVectors",
                "timestampNtz",
                "vacuumProtocolCheck",
            }
        ),
        checks_use=True,
    ),
)
"""Every client. Writer-only features never block a client from reading."""
