"""Files that health asks the store for: lost, truncated, removed meanwhile, or not to be asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from math import comb, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from delta_maintenance.errors import CorruptTableError, StorageAccessError, StorageError
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.operations.health.models import FileCheck
from delta_maintenance.policies import assess_table
from delta_maintenance.policies.run import run
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION
from delta_maintenance.protocol.delta_log.file_sample import NEWEST_FILES, SAMPLED_FILES, FileSample
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.storage.core import FileStatus, Store
from delta_maintenance.table.read import Table, summary
from tests.support.emulators.s3_server import S3Server
from tests.support.operations.table_health import health
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import (
    add,
    commit_info,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.managed import Managed
from tests.support.tables.policy_tables import asked
from tests.support.tables.table_builder import TableBuilder
from tests.support.tables.vacuum_tables import NOW, Folder, named_memory

pytestmark = pytest.mark.usefixtures("asks_for_files")

VECTOR = deletion_vector()
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def table_of(*names: str, store: Any = None) -> Folder:
    """A table with these files of one byte, each in a commit of its own."""
    table = Folder(store)
    for name in names:
        table.file(name)
        table.log(commit_info(), add(name))
    return table


def findings_of(measured: TableHealth) -> list[tuple[str, str | None]]:
    assert measured.file_check is not None
    assert TableHealth.from_json(measured.to_json()) == measured
    return [(finding.kind, finding.path) for finding in measured.file_check.findings]


def asked_for(measured: TableHealth) -> int:
    assert measured.file_check is not None
    return measured.file_check.asked


def stats(store: CountingStore) -> list[str]:
    """The data files that the store was asked for."""
    names = [line.removeprefix("stat ") for line in store.requests if line.startswith("stat ")]
    return sorted(name for name in names if not name.startswith("_delta_log"))


# What is found


def test_a_sound_table_says_how_many_files_were_asked_for() -> None:
    measured = health(table_of("a", "b", "c"))
    assert (findings_of(measured), asked_for(measured)) == ([], 3)
    assert measured.facts()["looked for"] == "3 files of version 3"
    assert measured.damage is None and not measured.facts()["missing"]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_deleted_a_truncated_and_a_renamed_file_are_found(
    tmp_path: Path, in_memory: bool
) -> None:
    table = table_of("a", "b", "c", "d", store=None if in_memory else tmp_path)
    table.checkpoint()
    table.store.delete("a")
    table.file("b", data=b"")
    table.file("other-name")
    table.store.delete("d")
    measured = health(table)
    assert sorted(findings_of(measured)) == [
        ("data-file-size", "b"),
        ("missing-data-file", "a"),
        ("missing-data-file", "d"),
    ]
    assert "b: the file has 0 bytes, but the log states 1" in measured.facts()["missing"]  # type: ignore[operator]


def test_the_assessment_fails_with_table_version_file_and_remedy() -> None:
    table = table_of("a", "b")
    table.store.delete("b")
    failed = assess_table(table.open(), asked(checkpoint=True), now=NOW)
    assert (failed.status, failed.exit_status, failed.retryable) == ("failed", 5, False)
    assert failed.problem is not None and failed.problem.startswith(
        "table memory:, version 2, file b: the data file does not exist; run fsck, which finds all "
        "such files; restore it from the versions of the store or from a backup; "
    )
    assert failed.health is not None and failed.due == ()


def test_the_file_of_a_deletion_vector_is_missing() -> None:
    table = Folder(first=(features("deletionVectors"), metadata()))
    table.file("a", "b", VECTOR_FILE)
    table.log(add("a", dv=VECTOR), add("b", dv=VECTOR))
    assert (findings_of(health(table)), asked_for(health(table))) == ([], 3)
    table.store.delete(VECTOR_FILE)
    assert [kind for kind, _ in findings_of(health(table))] == ["missing-deletion-vector"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("p=a%2520b/c", "p=a%20b/c"),
        ("p=a%20b/c", "p=a%20b/c"),
        ("p=%C3%A4%23%3F%3A/c", "p=ä#?:/c"),
        ("p=100%25/c", "p=100%/c"),
        ("Xy/c", "Xy/c"),
    ],
)
def test_encoded_paths_and_those_of_writers_that_do_not_encode_are_found(
    path: str, name: str
) -> None:
    table = Folder()
    table.file(name)
    table.log(add(path))
    assert (findings_of(health(table)), asked_for(health(table))) == ([], 1)
    table.store.delete(name)
    assert findings_of(health(table)) == [("missing-data-file", path)]


def test_the_files_of_a_catalog_managed_table_are_asked_for() -> None:
    managed = Managed()
    managed.ratify()
    for name in ("f0", "f1"):
        managed.store.put(name, b"x")
    sound = measure(managed.table().snapshot(), now=NOW)
    assert (findings_of(sound), asked_for(sound)) == ([], 2)
    managed.store.delete("f1")
    hollow = measure(managed.table().snapshot(), now=NOW)
    assert findings_of(hollow) == [("missing-data-file", "f1")]


@pytest.mark.parametrize("lines", [[commit_info()], [remove("gone")]])
def test_a_table_without_files_asks_for_none(lines: Any) -> None:
    table = Folder()
    table.log(*lines)
    assert (findings_of(health(table)), asked_for(health(table))) == ([], 0)


# No false alarm


class Racing(MemoryStore):
    """A store in which something happens when a data file is asked for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], None] | None = None

    def stat(self, path: str) -> FileStatus | None:
        if self.then is not None and not path.startswith("_delta_log"):
            then, self.then = self.then, None
            then()
        return super().stat(path)


def test_a_file_that_a_vacuum_deletes_meanwhile_is_not_missing() -> None:
    store = Racing()
    table = table_of("a", "b", store=store)
    snapshot = table.open().snapshot()

    def remove_and_vacuum() -> None:
        table.log(commit_info(), remove("a"))
        store.delete("a")

    store.then = remove_and_vacuum
    assert findings_of(measure(snapshot, now=NOW)) == []
    assert store.then is None, "the race was played"


def test_a_file_that_appears_at_the_second_request_is_not_missing() -> None:
    store = Racing()
    table = table_of("a", store=store)
    store.delete("a")
    real = store.stat
    answers: list[str] = []

    def late(path: str) -> FileStatus | None:
        status = real(path)
        if path == "a":
            answers.append(path)
            table.file("a")
        return status

    store.stat = late  # type: ignore[method-assign]
    assert findings_of(health(table)) == [] and len(answers) == 2


def test_a_file_that_is_live_again_at_a_newer_version_is_missing_there() -> None:
    store = Racing()
    table = table_of("a", store=store)
    store.delete("a")

    def append() -> None:
        table.file("b")
        table.log(commit_info(), add("b"))

    store.then = append
    (finding,) = health(table).file_check.findings  # type: ignore[union-attr]
    assert (finding.path, finding.version) == ("a", 2)


def test_files_outside_the_table_are_left_out() -> None:
    source = named_memory("memory://lake/source")
    clone = Folder(named_memory("memory://lake/clone"))
    clone.file("own")
    clone.log(add(f"{source.root}/a"), add("own"), add(f"{clone.store.root}/inside"))
    measured = health(clone)
    assert findings_of(measured) == [("missing-data-file", f"{clone.store.root}/inside")]
    assert measured.facts()["looked for"] == "2 files of version 1, 1 outside the table were not"


@pytest.mark.parametrize("kind", [StorageError, StorageAccessError])
def test_a_failure_of_the_store_is_no_damage(
    kind: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of("a", "b")
    real = MemoryStore.stat

    def failing(self: MemoryStore, path: str) -> FileStatus | None:
        if path == "a":
            raise kind("no answer", file=path)
        return real(self, path)

    monkeypatch.setattr(MemoryStore, "stat", failing)
    assessed = assess_table(table.open(), asked(), now=NOW)
    if kind is StorageError:
        assert (assessed.status, assessed.exit_status, assessed.retryable) == ("failed", 1, True)
        return
    assert assessed.status == "nothing-due" and assessed.health is not None
    assert (findings_of(assessed.health), asked_for(assessed.health)) == ([], 1)
    assert any("whether 1 file of the table exist" in note for note in assessed.notes)


# The sample


def batches_of(names: list[str], size: int) -> list[pa.Table]:
    parts = (names[start : start + size] for start in range(0, len(names), size))
    return [pa.table({"path": part}) for part in parts]


@pytest.mark.parametrize("size", [1, 3, 7, 40])
def test_each_file_is_as_likely_as_the_others_however_they_are_read(size: int) -> None:
    names, tries = [f"{number:02}" for number in range(40)], 600
    counts: Counter[str] = Counter()
    hits, missing = 0, set(names[:4])
    for seed in range(tries):
        sample = FileSample(seed=seed)
        for batch in batches_of(names, size):
            sample.take(batch)
        drawn = {row["path"] for row in sample.files()}
        assert len(drawn) == SAMPLED_FILES
        counts.update(drawn)
        hits += bool(drawn & missing)
    share = SAMPLED_FILES / len(names)
    for name in names:
        assert abs(counts[name] / tries - share) < 5 * sqrt(share * (1 - share) / tries)
    rate = 1 - comb(36, SAMPLED_FILES) / comb(40, SAMPLED_FILES)
    assert abs(hits / tries - rate) < 5 * sqrt(rate * (1 - rate) / tries)


def test_a_part_stands_for_all_files_of_the_checkpoint() -> None:
    tries, of_tail = 800, 0
    for seed in range(tries):
        sample = FileSample(seed=seed)
        sample.take(pa.table({"path": [f"tail-{number}" for number in range(20)]}))
        sample.take(pa.table({"path": [f"part-{number}" for number in range(10)]}), total=60)
        rows = sample.files()
        assert len(rows) == SAMPLED_FILES
        of_tail += sum(row["path"].startswith("tail") for row in rows)
    assert abs(of_tail / tries / SAMPLED_FILES - 20 / 80) < 0.03


def test_the_newest_files_come_first_up_to_a_number() -> None:
    sample = FileSample(seed=1, newer_than=10)
    for version in (13, 12, 11, 10, 9):
        paths = [f"{version}-{number}" for number in range(20)]
        versions = pa.array(np.full(20, version))
        sample.take(pa.table({"path": paths, COMMIT_VERSION: versions}))
    newest = [row["path"] for row in sample.files()][:NEWEST_FILES]
    expected = [f"{version}-{number}" for version in (13, 12, 11) for number in range(20)]
    assert newest == expected[:NEWEST_FILES]


@pytest.mark.parametrize("kind", ["classic", "v2-parquet", "v2-json", "row groups"])
def test_a_part_of_the_checkpoint_is_read_if_a_checksum_states_the_sums(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "FEWEST_FILES", 1)
    v2 = metadata(configuration={"delta.checkpointPolicy": "v2"})
    store = CountingStore()
    table = Folder(store, first=(features("v2Checkpoint"), v2))
    names = [f"f{number:02}" for number in range(40)]
    # In one bucket of sizes.
    table.log(commit_info(), *(add(name, size=9000) for name in names))
    if kind == "row groups":
        table.checkpoint(rows_per_group=14)
    else:
        options = checkpoint.CheckpointOptions(kind=kind, actions_per_sidecar=10)
        context = RunContext.at(NOW)
        plan = checkpoint.plan(table.open().snapshot(), options, context=context)
        checkpoint.apply(table.open(), plan, context=context)
    write_checksum(table)
    table.log(commit_info("DELETE"), remove("f03", size=9000, extendedFileMetadata=True), days=1)
    table.log(commit_info(), add("new", size=9000), days=1)
    before = replace(health(table), file_check=FileCheck(version=3, asked=0))
    drawn: Counter[str] = Counter()
    for second in range(60):
        store.requests.clear()
        measured = health_at(table, NOW + timedelta(seconds=second), previous=before)
        assert measured.checksum_version == 1
        assert SAMPLED_FILES - 2 <= asked_for(measured) <= SAMPLED_FILES
        drawn.update(set(stats(store)))
    assert drawn.keys() == {*names, "new"} - {"f03"}
    # About 8 of 40 times, as each of the others.
    assert drawn["new"] < 30


def write_checksum(table: TableBuilder) -> None:
    from delta_maintenance.operations import checksum

    context = RunContext.at(NOW)
    plan = checksum.plan(table.open().snapshot(), context=context)
    checksum.apply(table.open(), plan, context=context)


def health_at(table: TableBuilder, now: Any, **options: Any) -> TableHealth:
    return measure(table.open().snapshot(), now=now, **options)


# From one assessment to the next


def many(store: Store | None = None, number: int = 120) -> Folder:
    table = Folder(store)
    names = [f"f{number:03}" for number in range(number)]
    table.file(*names)
    table.log(commit_info(), *(add(name) for name in names))
    return table


def test_an_idle_table_draws_a_new_sample_and_asks_for_no_newest_files() -> None:
    store = CountingStore()
    table = many(store)
    first = health(table)
    assert NEWEST_FILES < asked_for(first) <= NEWEST_FILES + SAMPLED_FILES
    drawn = []
    for second in range(3):
        store.requests.clear()
        again = health_at(table, NOW + timedelta(seconds=second), previous=first)
        assert asked_for(again) == SAMPLED_FILES == len(stats(store))
        drawn.append(tuple(stats(store)))
    assert len(set(drawn)) == 3
    table.file("new")
    table.log(commit_info(), add("new"))
    store.requests.clear()
    health(table, previous=first)
    assert "new" in stats(store) and len(stats(store)) <= SAMPLED_FILES + 1


def test_an_older_copy_of_the_table_is_asked_for_its_newest_files() -> None:
    copy = many()
    newer = many()
    newer.log(commit_info(), add("f000"))
    measured = health(copy, previous=health(newer))
    assert NEWEST_FILES < asked_for(measured) <= NEWEST_FILES + SAMPLED_FILES


def test_a_lost_file_stays_a_failure_until_it_is_back_or_removed() -> None:
    table = many()
    table.store.delete("f000")
    first = health(table)
    assert findings_of(first) == [("missing-data-file", "f000")]
    for second in range(5):
        later = health_at(table, NOW + timedelta(seconds=second), previous=first)
        assert ("missing-data-file", "f000") in findings_of(later)
    table.file("f000")
    assert findings_of(health(table, previous=first)) == []
    table.store.delete("f000")
    table.log(commit_info("FSCK"), remove("f000"))
    assert findings_of(health(table, previous=first)) == []


def test_only_the_first_assessment_of_a_run_asks() -> None:
    store = CountingStore()
    table = many(store, 5)
    for _ in range(3):
        table.log(commit_info())
    result = run(table.open(), asked(checkpoint={"max_commits": 1}))
    assert result.status == "done" and len(result.outcomes) == 1
    assert len(stats(store)) == 5
    assert result.before is not None and result.after is not None
    assert result.before.health is not None and result.after.health is not None
    assert result.after.health.file_check == result.before.health.file_check


def test_nothing_is_run_on_a_hollow_table() -> None:
    table = many(number=5)
    table.store.delete("f000")
    result = run(table.open(), asked(checkpoint={"max_commits": 1}, vacuum=True))
    assert (result.status, result.exit_status, result.outcomes) == ("failed", 5, ())


# Requests on S3


def s3_table(server: S3Server, bucket: str, number: int) -> Store:
    store = open_store(f"s3://{bucket}/t", server.storage_options)
    table = TableBuilder(store)
    names = [f"f{n:03}" for n in range(number)]
    table.commit([protocol(), metadata(), *(add(name) for name in names)])
    server.fill(bucket, [f"t/{name}" for name in names], b"x")
    return store


def heads(server: S3Server) -> int:
    return sum(line.startswith("HEAD ") and "/t/f" in line for line in server.requests)


def test_on_s3_a_measurement_asks_for_a_bounded_number(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_table(s3_server, s3_bucket, 200)
    snapshot = Table(store).snapshot()
    s3_server.requests.clear()
    first = measure(snapshot, now=NOW)
    assert findings_of(first) == []
    assert heads(s3_server) == asked_for(first) <= SAMPLED_FILES + NEWEST_FILES
    s3_server.requests.clear()
    measure(snapshot, now=NOW, previous=first)
    assert heads(s3_server) == SAMPLED_FILES


def test_on_s3_a_denied_request_is_a_warning(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_table(s3_server, s3_bucket, 3)
    store.delete("f001")

    def deny(application: Any) -> Any:
        def answer(environ: Any, start_response: Any) -> Any:
            if environ["REQUEST_METHOD"] == "HEAD" and "/t/f" in environ["PATH_INFO"]:
                start_response("403 Forbidden", [("Content-Length", "0")])
                return []
            return application(environ, start_response)

        return answer

    s3_server.intercept = deny
    measured = measure(Table(store).snapshot(), now=NOW)
    assert (findings_of(measured), asked_for(measured)) == ([], 0)
    assert any("whether 3 files of the table exist" in warning for warning in measured.warnings)
    s3_server.intercept = None
    with pytest.raises(CorruptTableError, match="f001: the data file does not exist"):
        raise measure(Table(store).snapshot(), now=NOW).damage or AssertionError
