"""What goes of a log, what stays, and that every version which is to stay opens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from checkpointing import state_of

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import (
    CorruptTableError,
    RefusedError,
    StorageAccessError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan, CleanLogResult
from delta_maintenance.protocol.delta_log.file_names import (
    LogFileKind,
    checksum_name,
    classic_checkpoint_name,
    commit_name,
    compaction_name,
    multipart_checkpoint_name,
    parse_log_file_name,
    uuid_checkpoint_name,
)
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.segment import hinted_version
from delta_maintenance.testing.actions import (
    Action,
    add,
    commit_info,
    features,
    metadata,
    protocol,
    remove,
)
from delta_maintenance.testing.table_builder import LOG, UUID, TableBuilder

DAY_MS = 86_400_000
FIRST = datetime(2024, 3, 1, 12, tzinfo=UTC)
"""Noon: when version 0 is committed; one commit a day follows."""
FOLDERS = ("", "/_sidecars", "/_staged_commits")


def day(number: float) -> datetime:
    """So many days after version 0."""
    return FIRST + timedelta(days=number)


def build(
    commits: int = 50,
    *,
    listed: Action | None = None,
    configuration: dict[str, str] | None = None,
    info: Any = lambda version: [],
) -> TableBuilder:
    """A commit a day: each adds a file and removes the one before."""
    table = TableBuilder()
    for version in range(commits):
        lines: list[Any] = [*info(version), add(f"f{version}")]
        if version == 0:
            lines += [listed or protocol(), metadata(configuration=configuration)]
        else:
            lines.append(remove(f"f{version - 1}"))
        table.commit(lines, at_ms=epoch_millis(day(version)))
    return table


def names(table: TableBuilder) -> list[str]:
    """Every file of the log, relative to it."""
    return [
        status.path.removeprefix(f"{LOG}/")
        for folder in FOLDERS
        for status in table.store.list_from(LOG + folder)
    ]


def at(table: TableBuilder, now: datetime) -> datetime:
    """Sets the clock of the table's store."""
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(now)
    return now


def plan(table: TableBuilder, now: datetime, **options: Any) -> CleanLogPlan:
    return clean_log.plan(table.open().snapshot(), CleanLogOptions(**options), now=now)


def clean(table: TableBuilder, now: datetime, **options: Any) -> CleanLogResult:
    planned = plan(table, now, **options)
    return clean_log.apply(table.open(), planned, now=at(table, now))


def going(planned: CleanLogPlan) -> dict[str, tuple[str, ...]]:
    return {group.kind: group.names for group in planned.groups}


@contextmanager
def promised(table: TableBuilder, oldest: int) -> Iterator[None]:
    """Every version from `oldest` on is the same afterwards.

    A version needs its checkpoint or compaction and all commits up to it. So the last version in
    front of each, that version and the newest answer for those in between.
    """
    files = map(parse_log_file_name, names(table))
    ends = {
        file.end_version if file.kind is LogFileKind.COMPACTION else file.version
        for file in files
        if file.kind in BASES
    }
    chosen = {oldest, table.version, *ends, *((end or 0) - 1 for end in ends)}
    versions = [version for version in range(oldest, table.version + 1) if version in chosen]
    before = {version: state(table, version) for version in versions}
    yield
    for version in versions:
        assert state(table, version) == before[version], version
    assert table.open().snapshot().version == table.version


def state(table: TableBuilder, version: int) -> Any:
    snapshot = table.open().snapshot(version=version)
    try:
        found = state_of(snapshot)
    except UnusableCheckpointError as error:
        found = state_of(snapshot.avoiding(error))
    for files in (found.live, found.tombstones):
        for value in files.values():
            # A checkpoint changes no data, which is all that it changes.
            del value["dataChange"]
    return found


BASES = (
    LogFileKind.CLASSIC_CHECKPOINT,
    LogFileKind.MULTIPART_CHECKPOINT,
    LogFileKind.UUID_CHECKPOINT,
    LogFileKind.COMPACTION,
)
SHORT = {"allow_short_retention": True, "no_other_writers": True}


# The cut-off


@pytest.mark.conformance("CLEAN-01")
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kolkata"])
@pytest.mark.parametrize(
    ("now", "midnight"),
    [
        (datetime(2024, 4, 20, 0, 0, tzinfo=UTC), datetime(2024, 3, 21, tzinfo=UTC)),
        (datetime(2024, 4, 20, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2024, 3, 21, tzinfo=UTC)),
        (datetime(2024, 4, 21, 0, 0, tzinfo=UTC), datetime(2024, 3, 22, tzinfo=UTC)),
        (
            datetime(2024, 4, 21, 8, 0, tzinfo=timezone(timedelta(hours=14))),
            datetime(2024, 3, 21, tzinfo=UTC),
        ),
    ],
)
def test_the_cut_off_is_midnight_utc_wherever_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, zone: str, now: datetime, midnight: datetime
) -> None:
    table = build()
    for version in (10, 19, 20, 21):
        table.checkpoint(version)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        planned = plan(table, now)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert planned.cut_off_instant == midnight
    # Version v is of noon of the day v after the first of March.
    assert planned.cut_off_commit == planned.oldest_version == (midnight - FIRST).days


@pytest.mark.conformance("CLEAN-02")
@pytest.mark.parametrize(("late_ms", "commit"), [(0, 6), (1, 5)])
def test_a_commit_of_the_very_midnight_is_the_cut_off(late_ms: int, commit: int) -> None:
    table = TableBuilder()
    midnight = epoch_millis(datetime(2024, 3, 10, tzinfo=UTC))
    for version in range(10):
        first = [protocol(), metadata()] if version == 0 else []
        at_ms = midnight + (version - 6) * 1000 + late_ms
        table.commit([*first, add(f"f{version}")], at_ms=at_ms)
    table.checkpoint(5)
    table.checkpoint(6)
    planned = plan(table, datetime(2024, 4, 9, 7, tzinfo=UTC))
    assert (planned.cut_off_commit, planned.oldest_version) == (commit, commit)


@pytest.mark.conformance("CLEAN-02", "CLEAN-04", "CLEAN-05", "CLEAN-10", "ICT-10")
def test_what_was_current_at_the_cut_off_and_the_checkpoint_under_it_stay() -> None:
    table = build()
    table.checkpoint(9)
    table.checkpoint(18)
    now = day(51)
    planned = plan(table, now)
    assert planned.cut_off_commit == 20 and planned.oldest_version == 18
    commits = next(group for group in planned.groups if group.kind == "commits")
    assert (commits.count, commits.first, commits.last) == (18, commit_name(0), commit_name(17))
    assert commits.kept == commit_name(18) and "belongs to the cut-off checkpoint" in str(
        commits.kept_because
    )
    assert commits.bytes == sum(len(table.read(name)) for name in commits.names)
    with promised(table, 18):
        result = clean(table, now)
    assert result.status == "cleaned" and result.oldest_version == 18
    assert names(table) == [
        classic_checkpoint_name(18),
        *(commit_name(version) for version in range(18, 50)),
    ]
    again = clean(table, now)
    assert again.status == "nothing-to-do"


def test_plans_and_results_travel_as_json() -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    assert CleanLogPlan.from_json(json.loads(json.dumps(planned.to_json()))) == planned
    result = clean_log.apply(table.open(), planned, now=at(table, day(51)))
    assert CleanLogResult.from_json(json.loads(json.dumps(result.to_json()))) == result


# The checkpoint that all rests on


def _two(table: TableBuilder) -> str:
    return table.checkpoint(18)[0]


def _remnant(table: TableBuilder) -> None:
    table.drop(*table.checkpoint(18, parts=3)[1:])


def _empty(table: TableBuilder) -> None:
    table.zero(_two(table))


def _garbage(table: TableBuilder) -> None:
    table.garbage(_two(table), at=40)


def _damaged_pages(table: TableBuilder) -> None:
    table.garbage(_two(table), at=4, size=400)


def _without_protocol(table: TableBuilder) -> None:
    table.checkpoint(18, actions=[a for a in table.state(18) if "protocol" not in a])


def _without_metadata(table: TableBuilder) -> None:
    table.checkpoint(18, actions=[a for a in table.state(18) if "metaData" not in a])


def _without_a_sidecar(table: TableBuilder) -> None:
    table.drop(table.v2_checkpoint(18, sidecars=2)[-1])


def _damaged_sidecar(table: TableBuilder) -> None:
    table.garbage(table.v2_checkpoint(18, sidecars=2)[-1])


def _of_another_version(table: TableBuilder) -> None:
    (name,) = table.v2_checkpoint(17)
    table.manifest(
        uuid_checkpoint_name(18, UUID, "json"),
        [json.loads(line) for line in table.read(name).splitlines()],
    )
    table.drop(name)


def _empty_manifest(table: TableBuilder) -> None:
    table.write(uuid_checkpoint_name(18, UUID, "json"), b"")


DAMAGES = [
    _remnant,
    _empty,
    _garbage,
    _damaged_pages,
    _without_a_sidecar,
    _damaged_sidecar,
    _of_another_version,
    _empty_manifest,
]


@pytest.mark.conformance("CLEAN-03", "CLEAN-10")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_read_is_no_ground_to_stand_on(damage: Any) -> None:
    """deltalake 1.6.6 trusts the name, and destroys the table (D2)."""
    table = build(listed=features("v2Checkpoint"))
    damage(table)
    before = names(table)
    planned = plan(table, day(51))
    assert planned.is_noop and "complete and readable" in planned.reason
    with promised(table, 0):
        assert clean(table, day(51)).status == "nothing-to-do"
    assert names(table) == before
    table.checkpoint(7)
    with promised(table, 7):
        assert clean(table, day(51)).oldest_version == 7
    assert commit_name(7) in names(table) and commit_name(6) not in names(table)


@pytest.mark.conformance("CLEAN-03")
@pytest.mark.parametrize("damage", [_without_protocol, _without_metadata])
def test_a_checkpoint_without_protocol_or_metadata_is_no_ground_either(damage: Any) -> None:
    table = build()
    damage(table)
    table.checkpoint(40)
    assert plan(table, day(51)).is_noop
    table.checkpoint(7)
    planned = plan(table, day(51))
    assert planned.oldest_version == 7
    assert any("skipped" in note and "has no" in note for note in planned.notes)


@pytest.mark.conformance("CLEAN-03")
def test_without_any_checkpoint_nothing_goes() -> None:
    table = build()
    table.write(".stale.tmp", b"x", at_ms=1)
    assert plan(table, day(500)).is_noop
    table.checkpoint(40)
    assert plan(table, day(51)).is_noop


@pytest.mark.conformance("CLEAN-03", "CLEAN-04")
def test_a_checkpoint_without_its_commit_is_passed_over() -> None:
    table = build()
    table.checkpoint(7)
    table.checkpoint(18)
    table.drop(*(commit_name(version) for version in range(19)))
    planned = plan(table, day(51))
    assert planned.is_noop and any("commit of its version is gone" in n for n in planned.notes)


@pytest.mark.conformance("CLEAN-10", "CLEAN-15")
def test_a_log_with_a_gap_above_the_cut_off_is_left_alone() -> None:
    table = build()
    table.checkpoint(18)
    table.checkpoint(30)
    table.drop(commit_name(25))
    with pytest.raises(CorruptTableError, match="commit 25 is missing"):
        plan(table, day(51))


# Every kind of file


def litter(table: TableBuilder) -> tuple[set[str], set[str]]:
    """Files of every kind around version 18: those that go, and those that stay."""
    old, new = epoch_millis(day(1)), epoch_millis(day(50.5))
    going: dict[str, int] = {}
    staying: dict[str, int] = {}
    for version in range(50):
        target = going if version < 18 else staying
        target[checksum_name(version)] = old
        target[f".{commit_name(version)}.crc"] = old
    for name in [
        compaction_name(0, 9),
        compaction_name(15, 22),
        compaction_name(18, 24),
        multipart_checkpoint_name(12, 1, 2),
        multipart_checkpoint_name(12, 2, 2),
        multipart_checkpoint_name(13, 2, 3),
        uuid_checkpoint_name(14, UUID, "json"),
        uuid_checkpoint_name(15, UUID, "parquet"),
        f".{classic_checkpoint_name(9)}.crc",
        f".{checksum_name(3)}.crc",
        f"_staged_commits/{17:020}.{UUID}.json",
        f"_staged_commits/{18:020}.{UUID}.json",
        f"_staged_commits/.{18:020}.{UUID}.json.tmp",
        f".{commit_name(51)}.{UUID}.tmp",
        f"_commit_{UUID}.json.tmp",
        f"{7:020}.{UUID}.tmp",
        "_sidecars/.under-way.tmp",
        "_sidecars/nobody.parquet",
        f"_sidecars/{9:020}.checkpoint.0000000001.0000000001.{UUID}.parquet",
    ]:
        going[name] = old
    for name in [
        compaction_name(19, 24),
        multipart_checkpoint_name(18, 1, 2),
        multipart_checkpoint_name(30, 2, 3),
        f"_staged_commits/{19:020}.{UUID}.json",
        f".{commit_name(50)}.{UUID}-2.tmp",
        "_last_vacuum_info",
        "._last_checkpoint.crc",
        ".s3-optimization-0",
        "00000000000000000003.json.bak",
        "3.json",
        f"{3:020}.{4:020}.compact.json",
        f"{3:020}.checkpoint.parquet.tmp2",
        "99999999999999999999.json",
        "_sidecars/odd.txt",
        "_sidecars/.hidden.parquet",
        "notes.txt",
    ]:
        staying[name] = old
    staying["_sidecars/young.parquet"] = staying[f".{commit_name(52)}.x.tmp"] = new
    staying.pop(f".{commit_name(50)}.{UUID}-2.tmp")
    staying["_sidecars/dateless.parquet"] = staying[".dateless.tmp"] = 0
    staying["_sidecars/future.parquet"] = epoch_millis(day(99))
    for name, at_ms in {**going, **staying}.items():
        table.write(name, b"" if "checkpoint.0" in name and name[0] != "_" else b"{}", at_ms=at_ms)
    return set(going), set(staying)


@pytest.mark.conformance(
    "CLEAN-05", "CLEAN-06", "CLEAN-07", "CLEAN-09", "CLEAN-14", "CLEAN-15", "CRC-09", "LOG-09"
)
def test_exactly_what_is_outdated_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake 1.6.6 leaves all but plain commits and checkpoints for ever (D6)."""
    table = build(listed=features("v2Checkpoint"))
    expected_gone, expected_kept = litter(table)
    table.checkpoint(9)
    referenced = table.v2_checkpoint(18, sidecars=2, uuid=None)
    before = set(names(table))
    now = day(51)
    planned = plan(table, now)
    with promised(table, 18):
        result = clean(table, now)
    gone = before - set(names(table))
    expected_gone |= {commit_name(version) for version in range(18)} | {classic_checkpoint_name(9)}
    assert gone == expected_gone
    assert expected_kept <= set(names(table)) and set(referenced) <= set(names(table))
    assert {name for group in planned.groups for name in group.names} == gone
    assert result.status == "cleaned" and sum(group.deleted for group in result.groups) == len(gone)
    assert [group.kind for group in planned.groups] == [
        *("compactions", "commits", "checksums", "checkpoints", "staged-commits"),
        *("hadoop-checksums", "temporary-files", "sidecars"),
    ]
    kept = {group.kind: group.kept for group in planned.groups}
    assert kept["compactions"] == compaction_name(19, 24)
    assert kept["checksums"] == checksum_name(18)
    assert kept["checkpoints"] == multipart_checkpoint_name(18, 1, 2)
    assert all((group.kept is None) == (group.kept_because is None) for group in planned.groups)


# Sidecars


def with_sidecars() -> TableBuilder:
    """V2 checkpoints of versions 9, 18 and 30, each with two sidecars, all of them old."""
    table = build(listed=features("v2Checkpoint"))
    for version in (9, 18, 30):
        table.v2_checkpoint(version, sidecars=2, uuid=f"{UUID[:-2]}{version:02}")
    return table


def sidecars(table: TableBuilder) -> list[str]:
    return [name for name in names(table) if name.startswith("_sidecars/")]


@pytest.mark.conformance("CLEAN-08", "CLEAN-09", "CKPT-24")
def test_sidecars_of_checkpoints_that_go_go_after_them() -> None:
    table = with_sidecars()
    with promised(table, 18):
        result = clean(table, day(51))
    assert [name[10:12] for name in sidecars(table)] == ["18", "18", "30", "30"]
    assert result.groups[-1].kind == "sidecars" and result.groups[-1].deleted == 2


@pytest.mark.conformance("CLEAN-09")
@pytest.mark.parametrize(("at_ms", "gone"), [(-1, True), (0, False)])
def test_a_sidecar_of_yesterday_may_belong_to_a_checkpoint_under_way(
    at_ms: int, gone: bool
) -> None:
    table = with_sidecars()
    now = day(51)
    midnight = datetime(2024, 4, 20, tzinfo=UTC)
    assert timedelta(days=1) <= now - midnight < timedelta(days=2)
    table.write("_sidecars/n.parquet", b"x", at_ms=epoch_millis(midnight) + at_ms)
    clean(table, now)
    assert ("_sidecars/n.parquet" not in sidecars(table)) == gone


@pytest.mark.conformance("CLEAN-08")
@pytest.mark.parametrize("damage", ["garbage", "zero", "drop-commit"])
def test_no_sidecar_goes_while_any_checkpoint_cannot_be_asked(damage: str) -> None:
    table = with_sidecars()
    manifest = uuid_checkpoint_name(30, f"{UUID[:-2]}30", "json")
    if damage == "garbage":
        table.write(manifest, b'{"sidecar": {')
    elif damage == "zero":
        table.zero(manifest)
    else:
        table.write(classic_checkpoint_name(40), b"PAR1 or not")
    planned = plan(table, day(51))
    assert "sidecars" not in going(planned) and "commits" in going(planned)
    assert any("no sidecar is deleted" in note for note in planned.notes)
    with promised(table, 18):
        clean(table, day(51))
    assert len(sidecars(table)) == 6


@pytest.mark.conformance("CLEAN-08")
def test_a_checkpoint_that_comes_in_between_keeps_its_sidecars() -> None:
    table = with_sidecars()
    table.write("_sidecars/slow-1.parquet", b"x", at_ms=1)
    planned = plan(table, day(51))
    assert "_sidecars/slow-1.parquet" in going(planned)["sidecars"]
    old = [
        json.loads(line)
        for line in table.read(uuid_checkpoint_name(30, f"{UUID[:-2]}30", "json")).splitlines()
    ]
    slow = {"sidecar": {"path": "slow-1.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    table.manifest(
        uuid_checkpoint_name(30, UUID, "json"), [*(a for a in old if "sidecar" not in a), slow]
    )
    result = clean_log.apply(table.open(), planned, now=at(table, day(51)))
    assert result.status == "cleaned"
    assert "_sidecars/slow-1.parquet" in sidecars(table)


# Clients that do not know V2


@pytest.mark.conformance("CKPT-28", "CLEAN-10")
@pytest.mark.parametrize("encoding", ["json", "parquet"])
@pytest.mark.parametrize("count", [0, 2])
def test_the_oldest_checkpoint_gets_a_name_that_old_clients_see(encoding: Any, count: int) -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18, sidecars=count, encoding=encoding)
    classic = classic_checkpoint_name(18)
    assert plan(table, day(51)).needs_classic_name
    with promised(table, 18):
        result = clean(table, day(51))
        assert result.compatible_checkpoint == f"{LOG}/{classic}" and classic in names(table)
        table.drop(uuid_checkpoint_name(18, UUID, encoding))
    checkpoint = table.open().snapshot(version=18).checkpoint
    assert checkpoint is not None and checkpoint.is_v2 and len(checkpoint.sidecars) == count
    assert not plan(table, day(52)).needs_classic_name


@pytest.mark.conformance("CKPT-28")
def test_a_classic_name_that_is_there_is_enough() -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18)
    (name,) = table.v2_checkpoint(18, uuid=None)
    before = table.read(name)
    assert clean(table, day(51)).compatible_checkpoint is None and table.read(name) == before


def test_a_damaged_file_under_the_classic_name_stops_everything() -> None:
    table = build(listed=features("v2Checkpoint"))
    table.v2_checkpoint(18)
    table.zero(table.checkpoint(18)[0])
    before = names(table)
    with pytest.raises(RefusedError, match="cannot be read, and none is ever overwritten"):
        clean(table, day(51))
    assert names(table) == before


# The hint


@pytest.mark.conformance("LAST-02")
@pytest.mark.parametrize("kind", ["classic", "parts", "v2"])
def test_the_hint_never_points_at_what_has_gone(kind: str) -> None:
    table = build(listed=features("v2Checkpoint") if kind == "v2" else None)
    table.checkpoint(9)
    table.hint(9)
    if kind == "v2":
        table.v2_checkpoint(18, sidecars=1)
    else:
        table.checkpoint(18, parts=3 if kind == "parts" else 1)
    planned = plan(table, day(51))
    assert planned.stale_hint == 9
    with promised(table, 18):
        assert clean(table, day(51)).hint_updated
    assert hinted_version(table.store) == 18
    hint = json.loads(table.read("_last_checkpoint"))
    assert hint.get("parts") == (3 if kind == "parts" else None)
    assert hint["numOfAddFiles"] == 1 and hint["size"] >= 21


def test_a_hint_that_stays_right_is_not_touched() -> None:
    table = build()
    table.checkpoint(18)
    table.checkpoint(40)
    table.hint(40)
    before = table.read("_last_checkpoint")
    assert not clean(table, day(51)).hint_updated and table.read("_last_checkpoint") == before


# Ages


@pytest.mark.conformance("CLEAN-12")
def test_a_copied_table_is_as_young_as_its_copy() -> None:
    table = build()
    table.checkpoint(18)
    for version in range(50):
        table.write(
            commit_name(version), table.read(commit_name(version)), at_ms=epoch_millis(day(50))
        )
    planned = plan(table, day(51))
    assert planned.is_noop and "no commit is as old as" in planned.reason
    assert any("as young as the copy" in note for note in planned.notes)


@pytest.mark.conformance("CLEAN-12")
@pytest.mark.parametrize(
    ("at_ms", "oldest"), [(epoch_millis(day(49)), 2), (0, 2), (epoch_millis(day(500)), 2)]
)
def test_a_commit_that_is_not_known_to_be_old_protects_all_that_follow(
    at_ms: int, oldest: int
) -> None:
    table = build()
    table.checkpoint(2)
    table.checkpoint(18)
    table.write(commit_name(5), table.read(commit_name(5)), at_ms=at_ms)
    assert plan(table, day(51)).oldest_version == oldest
    assert plan(table, day(51)).cut_off_commit == 4


@pytest.mark.conformance("CLEAN-12", "ICT-08")
@pytest.mark.parametrize(
    ("enabled_at", "own", "commit"),
    [
        (0, lambda v: day(v), 20),
        (0, lambda v: day(v + 10), 10),
        (0, lambda v: day(v - 10), 20),
        (0, lambda v: day(v + 100), None),
        (15, lambda v: day(v + 10), 14),
        (15, lambda v: day(v + 2), 18),
        (30, lambda v: day(v + 100), 20),
    ],
)
def test_of_two_times_of_a_commit_the_later_protects_it(
    enabled_at: int, own: Any, commit: int | None
) -> None:
    configuration = {"delta.enableInCommitTimestamps": "true"}
    if enabled_at:
        configuration["delta.inCommitTimestampEnablementVersion"] = str(enabled_at)

    def info(version: int) -> Sequence[Action]:
        if version < enabled_at:
            return [commit_info()]
        return [commit_info(inCommitTimestamp=epoch_millis(own(version)))]

    listed = protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = build(listed=listed, configuration=configuration, info=info)
    for version in range(0, 50, 2):
        table.checkpoint(version)
    planned = plan(table, day(51))
    assert planned.cut_off_commit == commit
    assert planned.oldest_version == (None if commit is None else commit // 2 * 2)


def test_a_commit_that_must_tell_its_time_and_does_not_stops_everything() -> None:
    listed = protocol(1, 7, writer_features=["inCommitTimestamp"])
    table = build(listed=listed, configuration={"delta.enableInCommitTimestamps": "true"})
    table.checkpoint(18)
    with pytest.raises(CorruptTableError, match="no inCommitTimestamp"):
        plan(table, day(51))


# Gates


@pytest.mark.conformance("CLEAN-13")
def test_a_table_that_wants_no_clean_up_gets_none() -> None:
    table = build(configuration={"delta.enableExpiredLogCleanup": "false"})
    table.checkpoint(18)
    planned = plan(table, day(51))
    assert planned.is_noop and "enableExpiredLogCleanup" in planned.reason


@pytest.mark.conformance("CLEAN-13")
@pytest.mark.parametrize(
    ("configuration", "problem"),
    [
        ({"delta.logRetentionDuration": "interval 6 days"}, "shorter than delta.deletedFile"),
        ({"delta.deletedFileRetentionDuration": "interval 31 days"}, "shorter than delta.deleted"),
        ({"delta.logRetentionDuration": "interval 2 months"}, "cannot be read"),
        ({"delta.logRetentionDuration": "interval -1 days"}, "cannot be read"),
        ({"delta.deletedFileRetentionDuration": "soon"}, "cannot be read"),
        ({"delta.enableExpiredLogCleanup": "maybe"}, "cannot be read"),
        ({"delta.requireCheckpointProtectionBeforeVersion": "x"}, "cannot be read"),
        ({"delta.enableInCommitTimestamps": "perhaps"}, "cannot be read"),
    ],
)
def test_properties_that_contradict_or_say_nothing_are_refused(
    configuration: dict[str, str], problem: str
) -> None:
    table = build(configuration=configuration)
    table.checkpoint(18)
    with pytest.raises(RefusedError, match=problem):
        plan(table, day(51))


def test_a_property_that_does_not_steer_the_clean_up_may_be_wrong() -> None:
    table = build(configuration={"delta.checkpointInterval": "often"})
    table.checkpoint(18)
    assert not plan(table, day(51)).is_noop


def test_a_retention_beyond_the_calendar_keeps_everything() -> None:
    table = build(configuration={"delta.logRetentionDuration": "interval 900000 days"})
    table.checkpoint(18)
    assert "longer than the calendar" in plan(table, day(51)).reason


@pytest.mark.conformance("CLEAN-13")
def test_the_last_day_and_the_tables_own_retention_are_kept_without_two_flags() -> None:
    none = {
        "delta.logRetentionDuration": "interval 0 days",
        "delta.deletedFileRetentionDuration": "interval 0 days",
    }
    table = build(configuration=none)
    for version in range(50):
        table.checkpoint(version)
    planned = plan(table, day(49.2))
    assert planned.oldest_version == 47 and any("are kept nevertheless" in n for n in planned.notes)
    hour = timedelta(hours=1)
    for flags in ({}, {"allow_short_retention": True}, {"no_other_writers": True}):
        with pytest.raises(RefusedError, match="shorter than 1 day"):
            plan(table, day(49.2), log_retention=hour, **flags)
    assert plan(table, day(49.2), log_retention=hour, **SHORT).oldest_version == 48
    longer = build()
    longer.checkpoint(10)
    with pytest.raises(RefusedError, match="shorter than 30 days"):
        plan(longer, day(51), log_retention=timedelta(days=29))
    assert plan(longer, day(51), log_retention=timedelta(days=41)).cut_off_commit == 9


@pytest.mark.conformance("CLEAN-16", "CAT-01")
@pytest.mark.parametrize(
    ("listed", "feature"),
    [
        (protocol(1, 7, writer_features=["fromTheFuture"]), "fromTheFuture"),
        (protocol(1, 8), "writer version 8"),
        (
            features("catalogManaged", "vacuumProtocolCheck", writer_only=["inCommitTimestamp"]),
            "catalogManaged",
        ),
        (protocol(1, 7, writer_features=["coordinatedCommits-preview"]), "coordinatedCommits"),
    ],
)
def test_a_table_that_is_not_fully_understood_is_refused_untouched(
    listed: Action, feature: str
) -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    table.commit([listed], at_ms=epoch_millis(day(50)))
    before = names(table)
    with pytest.raises(UnsupportedFeatureError, match=feature):
        plan(table, day(51))
    with pytest.raises(UnsupportedFeatureError, match=feature):
        clean_log.apply(table.open(), planned, now=at(table, day(51)))
    assert names(table) == before


def test_actions_that_no_checkpoint_has_are_not_cleaned_away() -> None:
    table = build()
    table.checkpoint(18)
    table.commit([{"fromTheFuture": {}}], at_ms=epoch_millis(day(50)))
    with pytest.raises(RefusedError, match="fromTheFuture"):
        plan(table, day(51))


# Checkpoint protection


def protected(before: int) -> TableBuilder:
    listed = protocol(1, 7, writer_features=["checkpointProtection"])
    boundary = {"delta.requireCheckpointProtectionBeforeVersion": str(before)}
    table = build(listed=listed, configuration=boundary)
    for version in (5, 10, 18):
        table.checkpoint(version)
    return table


@pytest.mark.conformance("CPROT-01", "CPROT-03")
@pytest.mark.parametrize("before", [19, 30, 49])
def test_a_clean_up_that_stops_short_of_the_boundary_deletes_nothing(before: int) -> None:
    table = protected(before)
    planned = plan(table, day(51))
    assert planned.is_noop and f"before version {before} are protected" in planned.reason
    held = names(table)
    assert clean(table, day(51)).status == "nothing-to-do" and names(table) == held


@pytest.mark.conformance("CPROT-03")
def test_history_of_unknown_features_goes_as_a_whole_or_not_at_all() -> None:
    table = protected(20)
    future = protocol(1, 7, writer_features=["checkpointProtection", "fromTheFuture"])
    known = protocol(1, 7, writer_features=["checkpointProtection"])
    table.commit([future, add("f3")], version=3, at_ms=epoch_millis(day(3)))
    table.commit([known, add("f4")], version=4, at_ms=epoch_millis(day(4)))
    assert plan(table, day(51)).is_noop
    table.checkpoint(20)
    with promised(table, 20):
        assert clean(table, day(51)).oldest_version == 20


@pytest.mark.conformance("CPROT-01", "CPROT-04")
@pytest.mark.parametrize("before", [0, 1, 18])
def test_history_may_go_up_to_the_boundary_in_one_go(before: int) -> None:
    table = protected(before)
    with promised(table, 18):
        assert clean(table, day(51)).oldest_version == 18
    assert names(table)[0] == classic_checkpoint_name(18)


@pytest.mark.conformance("CPROT-04")
def test_the_boundary_holds_however_the_metadata_changes() -> None:
    table = protected(30)
    table.commit(
        [
            metadata(
                configuration={"delta.requireCheckpointProtectionBeforeVersion": "30"}, name="n"
            )
        ],
        at_ms=epoch_millis(day(50)),
    )
    assert plan(table, day(51)).is_noop


# When things change, or fail


def test_a_plan_holds_for_an_hour() -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    before = names(table)
    for late in (timedelta(hours=1, seconds=1), timedelta(days=1), -timedelta(hours=2)):
        with pytest.raises(RefusedError, match="a plan holds for an hour"):
            clean_log.apply(table.open(), planned, now=at(table, day(51) + late))
    assert names(table) == before
    late = day(51) + timedelta(minutes=59)
    assert clean_log.apply(table.open(), planned, now=at(table, late)).status == "cleaned"


def test_a_plan_whose_checkpoint_is_gone_is_refused() -> None:
    table = build()
    table.checkpoint(9)
    table.checkpoint(18)
    planned = plan(table, day(51))
    table.drop(classic_checkpoint_name(18))
    before = names(table)
    with pytest.raises(RefusedError, match="would now be cut off at 00000000000000000009"):
        clean_log.apply(table.open(), planned, now=at(table, day(51)))
    table.drop(classic_checkpoint_name(9))
    with pytest.raises(RefusedError, match="at no checkpoint"):
        clean_log.apply(table.open(), planned, now=at(table, day(51)))
    assert [name for name in before if name not in names(table)] == [classic_checkpoint_name(9)]


@pytest.mark.parametrize("skew", [timedelta(minutes=6), -timedelta(days=400)])
def test_clocks_that_disagree_stop_everything(skew: timedelta) -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    before = names(table)
    at(table, day(51) + skew)
    with pytest.raises(RefusedError, match="clocks of the store and of this machine differ"):
        clean_log.apply(table.open(), planned, now=day(51))
    assert names(table) == before


def test_a_retention_that_is_lengthened_after_the_plan_is_respected() -> None:
    table = build()
    table.checkpoint(5)
    table.checkpoint(18)
    planned = plan(table, day(51))
    longer = metadata(configuration={"delta.logRetentionDuration": "interval 40 days"})
    table.commit([longer], at_ms=epoch_millis(day(51)))
    with pytest.raises(RefusedError, match="plan again"):
        clean_log.apply(table.open(), planned, now=at(table, day(51)))


def test_two_clean_ups_of_one_plan_do_no_harm() -> None:
    table = with_sidecars()
    planned = plan(table, day(51))
    with promised(table, 18):
        first = clean_log.apply(table.open(), planned, now=at(table, day(51)))
        second = clean_log.apply(table.open(), planned, now=at(table, day(51)))
    assert (first.status, second.status) == ("cleaned", "cleaned")
    assert sum(group.deleted for group in second.groups) == 0


class Stubborn(MemoryStore):
    """Does not delete files of these names."""

    stuck: frozenset[str] = frozenset()

    def delete(self, path: str) -> None:
        if path.removeprefix(f"{LOG}/") in self.stuck:
            raise StorageAccessError("not allowed", file=path)
        super().delete(path)


@pytest.mark.conformance("CLEAN-11")
def test_what_cannot_be_deleted_is_told_and_keeps_what_rests_on_it() -> None:
    store = Stubborn()
    table = build()
    for path in names(table):
        store.now_ms = lambda path=path: table.store.stat(f"{LOG}/{path}").modified_ms  # type: ignore[union-attr]
        store.put(f"{LOG}/{path}", table.read(path))
    table.store = store
    table.checkpoint(9)
    table.checkpoint(18)
    store.stuck = frozenset({commit_name(3), commit_name(7)})
    with promised(table, 18):
        result = clean(table, day(51))
    assert result.status == "partly" and result.failed == 2
    assert result.failures == tuple(f"{LOG}/{commit_name(v)}: not allowed" for v in (3, 7))
    assert [(group.kind, group.planned, group.deleted) for group in result.groups] == [
        ("commits", 18, 16)
    ]
    assert classic_checkpoint_name(9) in names(table)
    store.stuck = frozenset()
    assert clean(table, day(51)).status == "cleaned"
    assert names(table)[0] == classic_checkpoint_name(18)
