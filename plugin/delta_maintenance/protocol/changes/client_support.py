"""Which clients can read and write a table under a protocol, and whom a change of it cuts off.

One row per client that people use, from what its makers publish and from runs against it. What
nobody has published and nobody here has run is unknown, and is said to be so.
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


class Access(Enum):
    """Whether a client can read or write a table."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What a release of a client is known to support."""

    name: str
    reads: frozenset[str]
    """Of the features that bind readers, those with which it reads."""
    writes: frozenset[str]
    """The features with which it writes."""
    unknown: frozenset[str] = frozenset()
    """Features of which neither is known. All others stop it."""
    reader_version: int = 3
    """The highest one it knows."""
    writer_version: int = 7
    """The highest one it knows."""
    looks_at_use: bool = False
    """Whether features for writers that a version merely implies stop it only where the table uses
    them, which a protocol does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What a change of the protocol means for one client that it concerns."""

    client: str
    reading: tuple[Access, Access]
    """Before and after."""
    writing: tuple[Access, Access]
    """Before and after."""
    features: tuple[str, ...]
    """What stands in its way afterwards and did not before; empty where it is the version."""


def impacts(before: Protocol, after: Protocol) -> tuple[Impact, ...]:
    """The clients that lose, or may lose, reading or writing, in the order of the table."""
    found = []
    for client in CLIENTS:
        reading = _reading(client, before)[0], _reading(client, after)[0]
        writing = _writing(client, before)[0], _writing(client, after)[0]
        if _loses(reading) or _loses(writing):
            obstacles = {*_reading(client, after)[1], *_writing(client, after)[1]}
            known = {*_reading(client, before)[1], *_writing(client, before)[1]}
            found.append(
                Impact(
                    client=client.name,
                    reading=reading,
                    writing=writing,
                    features=tuple(sorted(obstacles - known)),
                )
            )
    return tuple(found)


def _loses(access: tuple[Access, Access]) -> bool:
    before, after = access
    return before is not Access.NO and after is not Access.YES and before is not after


def _reading(client: Client, protocol: Protocol) -> tuple[Access, frozenset[str]]:
    binding = frozenset(filter(_binds_readers, supported_features(protocol)))
    if protocol.min_reader_version > client.reader_version:
        return Access.NO, binding - client.reads
    return _access(binding - client.reads, client)


def _writing(client: Client, protocol: Protocol) -> tuple[Access, frozenset[str]]:
    missing = supported_features(protocol) - client.writes
    if (
        protocol.min_reader_version > client.reader_version
        or protocol.min_writer_version > client.writer_version
    ):
        return Access.NO, missing
    if client.looks_at_use and protocol.writer_features is None and missing:
        return Access.UNKNOWN, frozenset()
    return _access(missing, client)


def _access(missing: frozenset[str], client: Client) -> tuple[Access, frozenset[str]]:
    if missing - client.unknown:
        return Access.NO, missing - client.unknown
    return (Access.UNKNOWN if missing else Access.YES), missing


def _binds_readers(name: str) -> bool:
    feature = find_feature(name)
    return feature is None or feature.kind is FeatureKind.READER_WRITER


_BOTH = frozenset(f.name for f in FEATURES if f.kind is FeatureKind.READER_WRITER)
_BASIC = frozenset({"appendOnly", "invariants"})


def _releases(
    family: str,
    since: Mapping[str, Iterable[str]],
    *,
    told: Iterable[str],
    perhaps: Mapping[str, Iterable[str]],
) -> list[Client]:
    """A row for each release in `since`, which has the features that came with it, in order.

    No release gives up what an older one supports. Only of the features in `told` is it known that
    releases before do not have them. Those in `perhaps` came with a release under the name of a
    preview, and nobody tells which release knows the final name; none before does.
    """
    rows, features, doubtful = [], _BASIC, frozenset[str]()
    untold = frozenset(f.name for f in FEATURES) - {*told, *chain(*perhaps.values())}
    for release, new in since.items():
        features |= frozenset(new)
        doubtful |= frozenset(perhaps.get(release, ()))
        rows.append(
            Client(
                name=f"{family} {release}",
                reads=features & _BOTH,
                writes=features,
                unknown=untold | doubtful,
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
    "13.3 LTS": (
        "timestampNtz",
        "v2Checkpoint",
        "clustering",
        "domainMetadata",
        "icebergCompatV1",
    ),
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
        # Of the newest release it is known by running it, of those before what its makers publish.
        told=chain(
            *(names for release, names in _DELTA_SPARK.items() if release != "4.4"),
            _NOT_IN_DELTA_SPARK,
        ),
        perhaps={"3.2": ("typeWidening",)},
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
        told=chain(*_DATABRICKS.values()),
        perhaps={"15.4 LTS": ("typeWidening", "variantType"), "16.4 LTS": ("collations",)},
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
        # Refused where it is listed for readers; with reader version 2 columns are looked up by
        # their logical names, which is wrong once one was renamed.
        unknown=frozenset({"columnMapping"}),
    ),
    Client(
        name="Polars 2.1",
        reads=frozenset({"deletionVectors", "timestampNtz", "variantType"}),
        writes=_DELTA_RS_WRITES,
    ),
    Client(
        # It inserts rows and nothing else; the kernel decides where.
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
        looks_at_use=True,
    ),
)
"""Reading a table with features for writers alone is open to every one of them."""
