"""What a checkpoint is planned to be, and which tables are refused before anything is touched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointPlan
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.core.facts import size_text
from tests.support.logs.checkpointing import NOW, files_of, write
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    deletion_vector,
    domain,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.table_builder import TableBuilder


def table_of(*commits: list[Action]) -> TableBuilder:
    table = TableBuilder()
    for commit in commits:
        table.commit(commit)
    return table


def plan(table: TableBuilder, version: int | None = None, **options: Any) -> CheckpointPlan:
    snapshot = table.open().snapshot(version=version)
    return checkpoint.plan(snapshot, CheckpointOptions(**options), context=RunContext.at(NOW))


def refuse(
    table: TableBuilder,
    error: type[DeltaMaintenanceError] = RefusedError,
    version: int | None = None,
    **options: Any,
) -> DeltaMaintenanceError:
    """The error that the plan, or the run, ends in; nothing may have been touched."""
    before = files_of(table.store)
    with pytest.raises(error) as refusal:
        write(table.open(), version=version, **options)
    assert files_of(table.store) == before
    assert refusal.value.remedy
    assert refusal.value.table == table.store.root
    return refusal.value


PLAIN = [protocol(), metadata(), add("a")]
V2 = [features("v2Checkpoint"), metadata(), add("a")]
POLICY = {"delta.checkpointPolicy": "v2"}


@pytest.mark.conformance("CKPT-17", "CKPT-19", "CKPT-20")
@pytest.mark.parametrize(
    ("commit", "kind", "planned"),
    [
        (PLAIN, "auto", "classic"),
        (V2, "auto", "classic"),
        ([features("v2Checkpoint"), metadata(configuration=POLICY)], "auto", "v2-json"),
        ([protocol(), metadata(configuration=POLICY)], "auto", "classic"),
        ([features("v2Checkpoint"), metadata(configuration=POLICY)], "classic", "classic"),
        (V2, "v2-classic", "v2-classic"),
        (V2, "v2-json", "v2-json"),
        (V2, "v2-parquet", "v2-parquet"),
    ],
)
def test_the_kind_is_what_the_table_or_the_caller_asks_for(
    commit: list[Action], kind: str, planned: str
) -> None:
    table = table_of(commit)
    found = plan(table, kind=kind)
    assert (found.kind, found.is_noop) == (planned, False)
    assert write(table.open(), kind).kind == planned


@pytest.mark.conformance("CKPT-20")
@pytest.mark.parametrize("kind", ["v2-classic", "v2-json", "v2-parquet"])
@pytest.mark.parametrize(
    "commit", [PLAIN, [features("deletionVectors"), metadata(configuration=POLICY)]]
)
def test_version_2_without_its_feature_is_refused(commit: list[Action], kind: str) -> None:
    assert "v2Checkpoint" in str(refuse(table_of(commit), kind=kind))


def test_a_plan_changes_nothing_and_has_a_reason() -> None:
    table = table_of(PLAIN, [add("b")])
    before = files_of(table.store)
    found = plan(table)
    assert files_of(table.store) == before
    assert (found.table, found.version, found.commits_since_checkpoint) == ("memory:", 1, 2)
    assert found.log_bytes == sum(len(data) for data in before.values())
    assert found.reason == (
        f"the table's checkpoint policy is classic; {size_text(found.log_bytes)} of log are "
        "little enough for one process"
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "clasic"}, "kind"),
        ({"kind": "multipart"}, "kind"),
        ({"engine": "Spark"}, "engine"),
        ({"actions_per_sidecar": -1}, "actions_per_sidecar"),
        ({"time_zone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"time_zone": "Europe"}, "Europe"),
        ({"time_zone": "../../etc/passwd"}, "passwd"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_the_plan(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named) as refusal:
        plan(table_of(V2), **options)
    assert refusal.value.remedy


# Engines.


def test_the_engine_follows_the_size_of_the_log() -> None:
    table = table_of(V2)
    size = plan(table).log_bytes
    for limit, engine in ((size, "spark"), (size + 1, "local")):
        found = plan(table, kind="v2-json", auto_spark_bytes=limit)
        assert found.engine == engine and str(size) in found.reason
        # Without sidecars there is nothing for a cluster to write.
        assert plan(table, kind="classic", auto_spark_bytes=limit).engine == "local"
        inline = plan(table, kind="v2-json", auto_spark_bytes=limit, actions_per_sidecar=0)
        assert inline.engine == "local"
    assert plan(table, kind="v2-json", auto_spark_bytes=0, engine="local").engine == "local"
    assert plan(table, kind="v2-json", engine="spark").engine == "spark"


@pytest.mark.parametrize("options", [{"kind": "classic"}, {"kind": "v2-json", "per_sidecar": 0}])
def test_spark_is_refused_where_there_are_no_sidecars(options: dict[str, Any]) -> None:
    assert "sidecars" in str(refuse(table_of(V2), engine="spark", **options))


def test_a_plan_for_spark_is_not_run_in_this_process() -> None:
    table = table_of(V2)
    with pytest.raises(InvalidRequestError, match="Spark"):
        checkpoint.apply(table.open(), plan(table, kind="v2-json", engine="spark"))
    assert table.names() == ["00000000000000000000.json"]


# Tables that must not be written to.


@pytest.mark.conformance("CKPT-31", "FEAT-01")
@pytest.mark.parametrize(
    ("action", "missing"),
    [
        (features(writer_only=["brandNew"]), "brandNew"),
        (protocol(1, 8), "writer version 8"),
        (features(writer_only=["coordinatedCommits-preview"]), "coordinatedCommits-preview"),
    ],
)
def test_a_writer_feature_that_is_not_supported_is_refused(action: Action, missing: str) -> None:
    error = refuse(table_of([action, metadata(), add("a")]), UnsupportedFeatureError)
    assert missing in str(error) and error.exit_status == 3


@pytest.mark.conformance("FEAT-15", "CPROT-02", "CKPT-31")
def test_the_protocol_of_the_version_itself_decides() -> None:
    table = table_of(
        PLAIN,
        [protocol(1, 7, writer_features=["brandNew"])],
        [add("b")],
        [protocol(1, 7, writer_features=["checkpointProtection"])],
        [metadata(configuration={"delta.requireCheckpointProtectionBeforeVersion": "3"})],
    )
    for version in (1, 2):
        assert refuse(table, UnsupportedFeatureError, version=version).version == version
    for version in (0, 3, 4):
        assert write(table.open(), version=version).status == "written"


@pytest.mark.conformance("DRAFT-03")
@pytest.mark.parametrize("name", ["rowIds", "delta.rowIds"])
def test_the_draft_of_row_tracking_is_refused(name: str) -> None:
    table = table_of([features(writer_only=[name]), metadata(), add("a")])
    assert "rowIds" in str(refuse(table, UnsupportedFeatureError))


@pytest.mark.conformance("DRAFT-03")
@pytest.mark.parametrize("key", ["preservedRowIdHighWaterMark", "highWaterMark"])
def test_a_draft_high_water_mark_is_not_lost(key: str) -> None:
    table = table_of(PLAIN, [{"rowIdHighWaterMark": {key: 9}}], [add("b")])
    assert "rowIdHighWaterMark" in str(refuse(table))
    assert write(table.open(), version=0).status == "written"


@pytest.mark.conformance("CKPT-01")
def test_a_version_that_does_not_exist_yet_is_refused() -> None:
    refuse_version = table_of(PLAIN)
    with pytest.raises(VersionNotFoundError):
        write(refuse_version.open(), version=1)


@pytest.mark.conformance("CKPT-01")
def test_a_version_without_its_commit_is_refused() -> None:
    table = table_of(PLAIN, [add("b")])
    table.checkpoint()
    table.drop("00000000000000000001.json")
    table.commit([add("c")], version=2)
    assert "commit" in str(refuse(table, version=1, kind="classic"))
    assert write(table.open()).version == 2


@pytest.mark.conformance("CAT-01", "CAT-05", "CKPT-01")
def test_a_catalog_managed_table_by_its_address_gets_no_checkpoint() -> None:
    supported = features(
        "catalogManaged", "vacuumProtocolCheck", "v2Checkpoint", writer_only=["inCommitTimestamp"]
    )
    table = table_of([commit_info(inCommitTimestamp=1), supported, metadata(), add("a")])
    assert "by its name in the catalog" in str(refuse(table, UnsupportedFeatureError))


@pytest.mark.conformance("REC-05", "FILE-08")
@pytest.mark.parametrize("kind", ["classic", "v2-json"])
def test_a_path_that_is_live_twice_is_refused(kind: str) -> None:
    supported = features("deletionVectors", "v2Checkpoint")
    table = table_of([supported, metadata(), add("a")], [add("a", dv=deletion_vector())])
    assert "two deletion vectors" in str(refuse(table, CorruptTableError, kind=kind))


@pytest.mark.conformance("FILE-03")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (add("/data/x"), remove("file:/data/x")),
        (add("file:///data/x"), add("file:/data/x")),
        (remove("s3://bucket/x"), add("s3a://bucket/x")),
    ],
)
@pytest.mark.parametrize("kind", ["classic", "v2-json"])
def test_two_spellings_of_one_file_are_refused(one: Action, other: Action, kind: str) -> None:
    table = table_of([features("v2Checkpoint"), metadata(), one], [other])
    error = refuse(table, CorruptTableError, kind=kind)
    assert "two different paths" in str(error) and error.version == 1


@pytest.mark.conformance("FILE-02", "FILE-03")
def test_absolute_paths_that_are_all_spelt_alike_are_repeated_as_they_stand() -> None:
    table = table_of([protocol(), metadata(), add("file:///d/x%20y"), add("/d/z"), add("x%20y")])
    write(table.open())
    table.drop("_last_checkpoint")
    paths = table.open().snapshot().live_files()["path"].to_pylist()
    assert sorted(paths) == ["/d/z", "file:///d/x%20y", "x%20y"]


NO_STATISTICS = {"delta.checkpoint.writeStatsAsJson": "false"}


@pytest.mark.conformance("STAT-08")
@pytest.mark.parametrize(
    "names",
    [
        ["deletionVectors"],
        ["rowTracking", "domainMetadata"],
        ["clustering", "domainMetadata"],
        ["icebergCompatV1"],
        ["icebergCompatV3"],
    ],
)
def test_statistics_that_a_feature_needs_are_not_left_out(names: list[str]) -> None:
    readers = [name for name in names if name == "deletionVectors"]
    supported = features(*readers, writer_only=[name for name in names if name not in readers])
    table = table_of([supported, metadata(configuration=NO_STATISTICS), add("a")])
    assert "statistics" in str(refuse(table))


@pytest.mark.conformance("STAT-08", "CKPT-10")
def test_statistics_are_omitted_if_the_properties_exclude_them() -> None:
    table = table_of([protocol(), metadata(configuration=NO_STATISTICS), add("a", stats="{}")])
    assert "exclude statistics" in " ".join(plan(table).notes)
    write(table.open())
    schema = table.open().snapshot().log.checkpoint.schema  # type: ignore[union-attr]
    assert {"stats", "stats_parsed"}.isdisjoint(f.name for f in schema.field("add").type)


@pytest.mark.conformance("SCHEMA-02")
def test_types_of_the_future_do_not_hinder_a_checkpoint() -> None:
    types = ["geometry(OGC:CRS84)", "interval year", "timestamp_nanos", "void", "variant"]
    columns = [
        {"name": f"c{number}", "type": kind, "nullable": True, "metadata": {}}
        for number, kind in enumerate(types)
    ]
    schema = json.dumps({"type": "struct", "fields": columns})
    struct_too = {"delta.checkpoint.writeStatsAsStruct": "true"}
    stats = '{"numRecords":1,"minValues":{"c0":"POINT(1 1)"},"nullCount":{"c0":0,"c3":1}}'
    table = table_of(
        [protocol(), metadata(schema=schema, configuration=struct_too), add("a", stats=stats)]
    )
    write(table.open())
    table.drop("_last_checkpoint")
    [row] = [row for batch in table.open().snapshot().log.scan() for row in batch.adds.to_pylist()]
    assert row["stats"] == stats
    assert row["stats_parsed"]["numRecords"] == 1


# Notes.


def test_omissions_and_changes_are_reported() -> None:
    table = table_of(
        [features(writer_only=["domainMetadata"]), metadata(), domain("d", {"b": 1, "a": "x"})],
        [{"stranger": {}}, metadata(configuration={"delta.checkpointPolicy": "V3"})],
    )
    notes = " | ".join(plan(table).notes)
    assert "stranger" in notes
    assert "delta.checkpointPolicy" in notes
    assert "maps" in notes
    result = write(table.open())
    assert " | ".join(result.notes) == notes
    assert table.open().snapshot().domain_metadata == {"d": '{"a":"x","b":1}'}


def test_a_damaged_checkpoint_is_reported() -> None:
    table = table_of(PLAIN, [add("b")])
    table.garbage(table.checkpoint(0)[0])
    assert "00000000000000000000.checkpoint.parquet" in " ".join(plan(table).notes)


# Nothing to do.


@pytest.mark.conformance("CKPT-27", "CKPT-29")
@pytest.mark.parametrize(
    ("existing", "asked", "does"),
    [
        ("classic", "auto", False),
        ("classic", "classic", False),
        ("classic", "v2-classic", False),
        ("classic", "v2-json", True),
        ("classic", "v2-parquet", True),
        ("v2-json", "auto", False),
        ("v2-json", "v2-parquet", False),
        # A client without the feature finds only the classic name.
        ("v2-json", "classic", True),
        ("v2-parquet", "v2-classic", True),
    ],
)
def test_a_sound_checkpoint_of_the_version_is_left_alone(
    existing: str, asked: str, does: bool
) -> None:
    table = table_of(V2)
    write(table.open(), existing)
    before = files_of(table.store)
    found = plan(table, kind=asked)
    assert found.is_noop is not does
    result = write(table.open(), asked)
    assert result.status == ("written" if does else "nothing-to-do")
    if does:
        assert before.keys() < files_of(table.store).keys()
    else:
        assert files_of(table.store) == before
        assert "sound checkpoint" in found.reason and result.notes == (found.reason,)
        assert result.hint_updated is False


@pytest.mark.parametrize("name", ["plan", "snapshot"])
def test_a_plan_is_run_on_its_own_version_whatever_is_at_hand(name: str) -> None:
    table = table_of(PLAIN, [add("b")])
    planned = plan(table, version=0)
    newest = table.open().snapshot()
    given = newest if name == "snapshot" else None
    assert checkpoint.apply(table.open(), planned, snapshot=given).num_files == 1
    assert table.names()[:2] == [
        "00000000000000000000.checkpoint.parquet",
        "00000000000000000000.json",
    ]


def test_an_error_names_table_and_version() -> None:
    table = table_of([protocol(), metadata(), add("a", odd={})])
    error = refuse(table)
    assert (error.table, error.version) == ("memory:", 0)


def test_progress_is_reported_while_files_are_written() -> None:
    table = table_of(V2, [add("b"), add("c")])
    told: list[tuple[str, int, int | None]] = []
    for kind in ("classic", "v2-json"):
        told.clear()
        checkpoint.apply(
            table.open(),
            replace(plan(table, kind="v2-json"), kind=kind),
            context=RunContext(progress=lambda *event: told.append(event)),
        )
        assert told[-1] == ("file actions", 3, None)
