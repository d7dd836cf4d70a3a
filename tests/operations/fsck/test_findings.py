"""Each kind of finding, seeded into a sound table: found with its place, and nothing else."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance import clock
from delta_maintenance.operations import set_clustering
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.operations.fsck.findings import KINDS
from delta_maintenance.operations.set_clustering import SetClusteringOptions
from delta_maintenance.protocol.delta_log import (
    ByteRange,
    SidecarSummary,
    Tally,
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
    hadoop_checksum_name,
    multipart_checkpoint_name,
)
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.table.commit.manifests import MANIFESTS
from delta_maintenance.table.read import Checkpoint, list_log
from tests.support.operations.fsck_findings import (
    COPY,
    ROW_ID_COLUMNS,
    VECTOR_FILE,
    add_again,
    decimal_partition,
    encrypt_file,
    look,
    lose_commit,
    narrow_file,
    repeat_row_ids,
)
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import (
    CONFIGURATION,
    DATA,
    NO_VECTORS,
    PROTOCOL,
    ROWS,
    WITH_MANIFESTS,
    SoundTable,
    parquet,
)
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder, log_text, parquet_bytes


@dataclass(frozen=True)
class Seed:
    """One way to damage a table."""

    spoil: Callable[[SoundTable], object]
    path: str | None = None
    """The path in the finding."""
    also: Mapping[str, int] = field(default_factory=dict)
    """Findings that are caused by it."""
    bare: bool = True
    """Whether the table has no checkpoints, compactions and checksums."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    count: int = 1


def _archive(t: SoundTable) -> None:
    """No file is opened that would have to be retrieved first."""
    t.store.put("c", b"x" * len(DATA))
    t.store.storage_classes["c"] = "DEEP_ARCHIVE"


def _archive_commit(t: SoundTable) -> None:
    """The newest version does not need it."""
    t.store.storage_classes[f"_delta_log/{commit_name(1)}"] = "GLACIER"


def _metadata(t: SoundTable, **fields: Any) -> None:
    t.step(log.metadata(**({"configuration": CONFIGURATION} | fields)))


def _bounds(least: int, greatest: int) -> str:
    stats = {"numRecords": 10, "minValues": {"id": least}, "maxValues": {"id": greatest}}
    return json.dumps(stats)


def _columns(*columns: tuple[str, str, dict[str, Any]]) -> str:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": metadata}
        for name, kind, metadata in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _state_without(t: SoundTable, path: str) -> list[log.Action]:
    return [a for a in t.state() if path not in (a.get("add") or {}).get("path", "")]


def _spoil_checksum(t: SoundTable) -> None:
    stated = json.loads(t.read(checksum_name(3)))
    t.checksum(3, stated | {"numFiles": stated["numFiles"] + 1})


def _tag_with_filter(t: SoundTable) -> None:
    """States the right sums, and a filter that is not there."""
    files = [c for c in list_log(t.store).checkpoints if c.entries[0].path == MANIFEST]
    keys = MapKeys(partition_columns=frozenset())
    batches = Checkpoint(t.store, files[0]).file_actions(keys=keys, only={SIDECAR})
    tally = Tally.total(Tally.of(batch.adds, batch.removes) for batch in batches)
    _tag(t, tally, ByteRange(offset=0, length=8))


def _tag(t: SoundTable, tally: Tally, byte_range: ByteRange | None = None) -> None:
    wrong = SidecarSummary(
        tally=tally,
        first_location=b"",
        last_location=b"\xff",
        deleted_first=None,
        deleted_last=None,
        filter=byte_range,
    )
    lines = [json.loads(line) for line in t.store.read(MANIFEST).splitlines()]
    for line in lines:
        if "sidecar" in line:
            line["sidecar"]["tags"] = wrong.to_tags(SIDECAR.rpartition("/")[2])
    t.write(MANIFEST.rpartition("/")[2], log_text(lines))


def _mapped(*columns: tuple[str, dict[str, Any]]) -> Callable[[SoundTable], None]:
    def spoil(t: SoundTable) -> None:
        names = ["columnMapping", *PROTOCOL["protocol"]["readerFeatures"]]
        writers = [*PROTOCOL["protocol"]["writerFeatures"], "columnMapping"]
        configuration = CONFIGURATION | {"delta.columnMapping.mode": "name"}
        t.step(
            log.protocol(3, 7, reader_features=names, writer_features=writers),
            log.metadata(
                configuration=configuration,
                schema=_columns(*((name, "long", metadata) for name, metadata in columns)),
            ),
        )

    return spoil


def _clustered_by_variant(t: SoundTable) -> None:
    names = [*PROTOCOL["protocol"]["readerFeatures"], "columnMapping", "variantType"]
    writers = [*PROTOCOL["protocol"]["writerFeatures"], "columnMapping", "variantType"]
    inner = json.loads(_columns(("v", "variant", _id(2, "physical-v"))))
    columns = [{"name": "s", "type": inner, "nullable": True, "metadata": _id(1, "physical-s")}]
    t.step(
        log.protocol(3, 7, reader_features=names, writer_features=writers),
        log.metadata(
            configuration=CONFIGURATION | {"delta.columnMapping.mode": "name"},
            schema=json.dumps({"type": "struct", "fields": columns}),
        ),
        log.domain("delta.clustering", '{"clusteringColumns":[["physical-s","physical-v"]]}'),
    )


def _id(number: int, name: str) -> dict[str, Any]:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def hadoop_checksum(data: bytes, *, every: int = 512) -> bytes:
    sums = [zlib.crc32(data[at : at + every]) for at in range(0, len(data), every)]
    return struct.pack(f">4sI{len(sums)}I", b"crc\0", every, *sums)


def _reused(t: SoundTable) -> None:
    for columns in ((("a", _id(1, "x")), ("b", _id(2, "y"))), (("a", _id(1, "x")),)):
        _mapped(*columns)(t)
    _mapped(("a", _id(1, "x")), ("c", _id(3, "y")))(t)


SIDECAR = "_delta_log/_sidecars/3-00000000-0000-4000-8000-000000000000-0.parquet"
MANIFEST = "_delta_log/00000000000000000003.checkpoint.00000000-0000-4000-8000-000000000000.json"


def commit(version: int) -> str:
    return f"_delta_log/{commit_name(version)}"


def _required(*names: str) -> str:
    """A schema with NOT NULL columns."""
    kinds = {"id": "long", "part": "string"}
    fields = [{"name": n, "type": kinds[n], "nullable": False, "metadata": {}} for n in names]
    return json.dumps({"type": "struct", "fields": fields})


def _with_feature(name: str) -> log.Action:
    lists = PROTOCOL["protocol"]
    writers = [each for each in lists["writerFeatures"] if each not in lists["readerFeatures"]]
    return log.features(*lists["readerFeatures"], writer_only=[*writers, name])


WITHOUT_PART = parquet_bytes(pa.table({"id": range(ROWS)}))
LINKS = f"{MANIFESTS}/manifest"
SEEDS: dict[str, Seed] = {
    "stale-manifest": Seed(lambda t: t.step(WITH_MANIFESTS, log.remove("b", dv=t.vector)), LINKS),
    "unwritable-manifest": Seed(lambda t: t.step(WITH_MANIFESTS), LINKS),
    "old-manifest": Seed(
        lambda t: t.store.put(LINKS, b"file:/t/a\n"), MANIFESTS, configuration=NO_VECTORS
    ),
    "unreadable-version": Seed(
        lambda t: t.rewrite(0, PROTOCOL), "_delta_log", {"remove-of-absent-file": 2}
    ),
    "overwritten-commit": Seed(lose_commit, COPY, {"file-of-overwritten-commit": 1}),
    "needed-overwritten-commit": Seed(
        lambda t: [lose_commit(t), t.step(log.remove("lost"))],
        COPY,
        {"file-of-overwritten-commit": 1, "remove-of-absent-file": 1},
    ),
    "file-of-overwritten-commit": Seed(lose_commit, "lost", {"overwritten-commit": 1}),
    "uncertain-commit": Seed(lambda t: lose_commit(t, marked=False), COPY),
    "log-gap": Seed(lambda t: t.drop(commit_name(2)), commit(2), {"unreadable-version": 1}),
    "history-gap": Seed(
        lambda t: [t.checkpoint(3), t.drop(commit_name(1))], commit(1), configuration={}
    ),
    "unreadable-commit": Seed(
        lambda t: t.truncate(commit_name(2), -5), commit(2), {"unreadable-version": 1}
    ),
    "checkpoint-without-commit": Seed(
        lambda t: [t.checkpoint(2), t.drop(*map(commit_name, range(3)))],
        f"_delta_log/{classic_checkpoint_name(2)}",
    ),
    "repeated-action": Seed(lambda t: t.step(log.txn("app", 8), log.txn("app", 9)), commit(5)),
    "repeated-file": Seed(lambda t: t.step(add_again(t, "c"), add_again(t, "c")), commit(5)),
    "added-and-removed": Seed(lambda t: t.step(log.remove("c"), add_again(t, "c")), commit(5)),
    "remove-of-absent-file": Seed(lambda t: t.step(log.remove("never there")), commit(5)),
    "doubled-file": Seed(lambda t: t.step(log.remove("b")), "b", {"remove-of-absent-file": 1}),
    "partition-value-spelling": Seed(decimal_partition("1.5"), "e"),
    "invalid-partition-value": Seed(decimal_partition("much"), "e"),
    "missing-not-null-column": Seed(
        lambda t: (
            t.step(
                log.metadata(configuration=CONFIGURATION, schema=_required("part")),
                t.data("e", size=len(WITHOUT_PART)),
                t.mark(),
            ),
            t.store.put("e", WITHOUT_PART),
        ),
        "e",
    ),
    "null-in-not-null-column": Seed(
        lambda t: t.step(
            log.metadata(configuration=CONFIGURATION, schema=_required("id")),
            t.data("e", stats=json.dumps({"numRecords": ROWS, "nullCount": {"id": 1}})),
            t.mark(),
        ),
        "e",
        also={"wrong-statistics": 1},
    ),
    "two-live-vectors": Seed(
        lambda t: t.step(add_again(t, "b", deletionVector={**t.vector, "offset": None})),
        commit(5),
        {"overlapping-row-ids": 1},
    ),
    "two-spellings": Seed(
        lambda t: [
            t.step(log.add("/x/y", size=1, baseRowId=80, defaultRowCommitVersion=5), t.mark(99)),
            t.step(log.add("file:/x/y", size=1, baseRowId=90, defaultRowCommitVersion=6)),
        ],
        None,
    ),
    "in-commit-timestamp": Seed(lambda t: t.step(inCommitTimestamp=EPOCH_MS), commit(5)),
    "unknown-action": Seed(lambda t: t.step({"odd": {"a": 1}}), commit(5)),
    "unknown-file": Seed(lambda t: t.write("strange", b"x"), "_delta_log/strange"),
    "abandoned-file": Seed(lambda t: t.write(".x.tmp", b"x"), "_delta_log/.x.tmp"),
    "stale-hadoop-checksum": Seed(
        lambda t: (
            [
                t.write(
                    hadoop_checksum_name(commit_name(n)), hadoop_checksum(t.read(commit_name(n)))
                )
                for n in (1, 2)
            ]
            + [t.write(hadoop_checksum_name(commit_name(3)), hadoop_checksum(b"another"))]
        ),
        commit(3),
    ),
    "empty-checkpoint": Seed(
        lambda t: t.write(classic_checkpoint_name(4), b""),
        f"_delta_log/{classic_checkpoint_name(4)}",
        bare=False,
    ),
    "incomplete-checkpoint": Seed(
        lambda t: t.drop(multipart_checkpoint_name(2, 1, 2)),
        f"_delta_log/{multipart_checkpoint_name(2, 2, 2)}",
        bare=False,
    ),
    "unreadable-checkpoint": Seed(
        lambda t: t.truncate(classic_checkpoint_name(1), -9),
        f"_delta_log/{classic_checkpoint_name(1)}",
        bare=False,
    ),
    "missing-sidecar": Seed(lambda t: t.store.delete(SIDECAR), SIDECAR, bare=False),
    "sidecar-size": Seed(
        lambda t: t.write(
            MANIFEST.rpartition("/")[2],
            t.store.read(MANIFEST).replace(b'"sizeInBytes":', b'"sizeInBytes":1', 1),
        ),
        SIDECAR,
        bare=False,
    ),
    "sidecar-differs": Seed(lambda t: _tag(t, Tally(adds=9)), SIDECAR, bare=False),
    "sidecar-summary": Seed(_tag_with_filter, SIDECAR, bare=False),
    "orphan-sidecar": Seed(
        lambda t: t.write("_sidecars/lone.parquet", b"x"), "_delta_log/_sidecars/lone.parquet"
    ),
    "checkpoint-differs": Seed(
        lambda t: t.checkpoint(4, actions=_state_without(t, "c")),
        f"_delta_log/{classic_checkpoint_name(4)}",
    ),
    "missing-tombstones": Seed(
        lambda t: t.forget_tombstone("c"), f"_delta_log/{classic_checkpoint_name(5)}"
    ),
    "damaged-hint": Seed(lambda t: t.hint("{"), "_delta_log/_last_checkpoint"),
    "hint-differs": Seed(
        lambda t: t.hint({"version": 3, "size": 1, "numOfAddFiles": 99}),
        "_delta_log/_last_checkpoint",
        bare=False,
    ),
    "dangling-hint": Seed(lambda t: t.hint(2), "_delta_log/_last_checkpoint"),
    "unreadable-compaction": Seed(
        lambda t: t.zero(compaction_name(1, 3)), f"_delta_log/{compaction_name(1, 3)}", bare=False
    ),
    "compaction-differs": Seed(
        lambda t: t.compaction(1, 3, lines=t.reconciled(1, 3)[:-1]),
        f"_delta_log/{compaction_name(1, 3)}",
    ),
    "unreadable-checksum": Seed(
        lambda t: t.checksum(2, b"{"), f"_delta_log/{checksum_name(2)}", bare=False
    ),
    "checksum-differs": Seed(_spoil_checksum, f"_delta_log/{checksum_name(3)}", bare=False),
    "checksum-without-commit": Seed(
        lambda t: t.checksum(5, {"numFiles": 1}), f"_delta_log/{checksum_name(5)}"
    ),
    "misplaced-feature": Seed(
        lambda t: t.step(
            log.protocol(
                3,
                7,
                reader_features=[*PROTOCOL["protocol"]["readerFeatures"], "appendOnly"],
                writer_features=PROTOCOL["protocol"]["writerFeatures"],
            )
        )
    ),
    "missing-feature": Seed(
        lambda t: t.step(
            log.features(
                "deletionVectors", "v2Checkpoint", writer_only=["inCommitTimestamp", "rowTracking"]
            )
        )
    ),
    "draft-feature": Seed(
        lambda t: t.step(
            log.features(
                "timestampNTZ",
                *PROTOCOL["protocol"]["readerFeatures"],
                writer_only=["domainMetadata", "inCommitTimestamp", "rowTracking"],
            )
        )
    ),
    "draft-row-ids": Seed(lambda t: t.step(log.domain("old", {"a": "1"}))),
    "unreadable-property": Seed(
        lambda t: _metadata(
            t, configuration=CONFIGURATION | {"delta.logRetentionDuration": "a while"}
        )
    ),
    "unreadable-schema": Seed(lambda t: _metadata(t, schema="{")),
    "unknown-partition-column": Seed(
        lambda t: _metadata(t, schema=log.SCHEMA_STRING, partitioned_by=["PART"])
    ),
    "repeated-column": Seed(
        lambda t: _metadata(t, schema=_columns(("a", "long", {}), ("A", "long", {})))
    ),
    "repeated-column-id": Seed(_mapped(("a", _id(1, "x")), ("b", _id(1, "y")))),
    "type-without-feature": Seed(
        lambda t: _metadata(t, schema=_columns(("at", "timestamp_ntz", {})))
    ),
    "reused-physical-name": Seed(_reused, path=commit(7)),
    "clustered-and-partitioned": Seed(
        lambda t: t.step(
            log.metadata(configuration=CONFIGURATION, partitioned_by=["part"]),
            log.domain("delta.clustering", '{"clusteringColumns":[["id"]]}'),
        )
    ),
    "lost-clustering": Seed(lambda t: t.step(_with_feature("clustering"))),
    "variant-layout": Seed(_clustered_by_variant),
    "vector-without-feature": Seed(
        lambda t: t.step(
            log.features(
                "v2Checkpoint", writer_only=["domainMetadata", "inCommitTimestamp", "rowTracking"]
            )
        ),
        "b",
    ),
    "vector-without-count": Seed(lambda t: t.step(add_again(t, "b", stats=None)), "b"),
    "invalid-statistics": Seed(lambda t: t.step(add_again(t, "c", stats='{"numRecords":')), "c"),
    "missing-row-id": Seed(lambda t: t.step(add_again(t, "c", baseRowId=None)), "c"),
    "overlapping-row-ids": Seed(lambda t: t.step(add_again(t, "c", baseRowId=25)), "c"),
    "repeated-row-id": Seed(repeat_row_ids, "c", configuration=ROW_ID_COLUMNS),
    "row-id-mark-too-low": Seed(lambda t: t.step(t.mark(38))),
    "future-row-commit-version": Seed(
        lambda t: t.step(add_again(t, "c", defaultRowCommitVersion=6)), "c"
    ),
    "missing-data-file": Seed(lambda t: t.store.delete("d e"), "d%20e"),
    "misnamed-file": Seed(lambda t: [t.store.put("d%2520e", DATA), t.store.delete("d e")], "d%20e"),
    "doubtful-file": Seed(lambda t: [t.store.put("C", DATA + b"x"), t.store.delete("c")], "c"),
    "data-file-size": Seed(lambda t: t.store.put("c", parquet(part="longer")), "c"),
    "missing-deletion-vector": Seed(lambda t: t.store.delete(VECTOR_FILE), "b"),
    "archived-data-file": Seed(_archive, "c"),
    "archived-log-file": Seed(_archive_commit, f"_delta_log/{commit_name(1)}", bare=False),
    "missing-removed-file": Seed(
        lambda t: [t.step(log.remove("c", deletionTimestamp=EPOCH_MS)), t.store.delete("c")], "c"
    ),
    "unreadable-data-file": Seed(lambda t: t.store.put("c", b"x" * len(DATA)), "c"),
    "unsupported-data-file": Seed(encrypt_file, "c"),
    "widened-without-feature": Seed(narrow_file, "c"),
    "row-count-differs": Seed(lambda t: t.step(add_again(t, "c", stats='{"numRecords":9}')), "c"),
    "wrong-statistics": Seed(lambda t: t.step(add_again(t, "c", stats=_bounds(1, 9))), "c"),
    "loose-bounds": Seed(lambda t: t.step(add_again(t, "c", stats=_bounds(0, 10))), "c"),
    "damaged-deletion-vector": Seed(
        lambda t: t.store.put(VECTOR_FILE, t.store.read(VECTOR_FILE)[:-1] + b"x"), "b"
    ),
}


@pytest.mark.conformance("LOG-02", "LOG-07", "LOG-08", "FILE-03", "FILE-04", "FILE-07", "FILE-08")
@pytest.mark.conformance("FILE-13", "REC-05", "META-06", "SCHEMA-03", "SCHEMA-09", "CLU-01")
@pytest.mark.conformance("CKPT-16", "CKPT-24", "CKPT-32", "COMP-10", "CRC-03", "CM-07", "CM-08")
@pytest.mark.conformance("DV-02", "DV-07", "DV-10", "DV-11", "RT-04")
# Managed tables have a module of their own: `test_lost_commits`.
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"lost-commit"}))
def test_each_kind_is_found_and_nothing_else(kind: str) -> None:
    seed = SEEDS[kind]
    table = SoundTable(configuration=seed.configuration, extras=not seed.bare)
    assert not look(table).findings.counts

    seed.spoil(table)
    found = look(table).findings

    assert found.counts == {kind: seed.count, **seed.also}
    (first,) = (finding for finding in found.first(20) if finding.kind == kind)
    assert first.path == seed.path
    assert (first.severity, first.remedy != "") == (KINDS[kind].severity, True)


@pytest.mark.conformance("CLU-01")
@pytest.mark.parametrize("domain", ['{"clusteringColumns":', '{"clusteringColumns":[["gone"]]}'])
def test_a_damaged_clustering_domain_is_found_until_it_is_set_again(domain: str) -> None:
    table = SoundTable(configuration=ROW_ID_COLUMNS, extras=False)
    table.step(_with_feature("clustering"), log.domain("delta.clustering", domain))
    (finding,) = look(table).findings.first(1)
    assert finding.kind == "lost-clustering" and "is damaged" in finding.problem
    options = SetClusteringOptions(by=("id",))
    set_clustering.apply(table.open(), set_clustering.plan(table.open().snapshot(), options))
    assert not look(table).findings.counts


def test_a_sound_table_has_no_findings_by_any_route() -> None:
    assert not look(SoundTable()).findings.counts
    assert not look(SoundTable(extras=False)).findings.counts
    assert not look(SoundTable(), deep=False).findings.counts


@pytest.mark.conformance("CM-08")
def test_restored_or_remapped_columns_do_not_count_as_reused_names() -> None:
    table = SoundTable(extras=False)
    one, two = ("a", _id(1, "x")), ("b", _id(2, "y"))
    for columns in ((one, two), (one,), (("renamed", _id(1, "x")), two)):
        _mapped(*columns)(table)
    # Restored or renamed, but then all files are rewritten, and IDs start again.
    _metadata(table)
    _mapped(("c", _id(1, "y")), ("d", _id(2, "x")))(table)
    assert "reused-physical-name" not in look(table, deep=False).findings.counts


@pytest.mark.conformance("SCHEMA-09")
@pytest.mark.parametrize("clustered_by", [None, '{"clusteringColumns":[["v"]]}'])
def test_a_variant_neither_partitions_nor_clusters_a_table(clustered_by: str | None) -> None:
    table = TableBuilder()
    columns = _columns(("v", "variant", {}), ("w", "variant", {}), ("x", "long", {}))
    by = [] if clustered_by else ["v"]
    layout = [log.domain("delta.clustering", clustered_by)] if clustered_by else []
    first = log.metadata(schema=columns, partitioned_by=by)
    table.commit([log.features("variantType", "domainMetadata"), first, *layout])
    found = examine(table.open(), now=clock.now()).findings.table()
    verb = "clustered" if clustered_by else "partitioned"
    found = found.filter(pc.equal(found["kind"], "variant-layout"))
    assert found["problem"].to_pylist() == [f"the table is {verb} by v, a variant"]
