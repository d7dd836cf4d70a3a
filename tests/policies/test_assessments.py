"""The stored assessment of each table: complete, small, and robust against damage."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError, StorageError
from delta_maintenance.operations.core import Freed, freed_bytes
from delta_maintenance.policies import (
    HISTORY,
    MAX_BYTES,
    AssessmentEntry,
    AssessmentStore,
    LastRun,
    UnreadableEntry,
    entries,
)
from delta_maintenance.policies.entries import BeforeAfter
from delta_maintenance.storage import FileStatus, Store
from tests.support.tables.assessed_tables import NOW, assessment, health, run_result

ORDERS = "s3://lake/sales/orders"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AssessmentStore]:
    kept = AssessmentStore(str(tmp_path / "not" / "there" / "yet"))
    yield kept
    kept.close()


def the_file(store: AssessmentStore) -> Path:
    (file,) = Path(store.uri).iterdir()
    return file


def loaded(store: AssessmentStore, uri: str = ORDERS) -> AssessmentEntry:
    entry = store.load(uri)
    assert isinstance(entry, AssessmentEntry)
    return entry


def test_a_missing_folder_has_no_entries(store: AssessmentStore) -> None:
    assert store.load(ORDERS) is None
    assert store.load_all() == ()


def test_an_assessment_comes_back_as_it_was(store: AssessmentStore) -> None:
    store.save(assessment())
    assert replace(loaded(store), identity=None) == AssessmentEntry(assessment=assessment())


def test_a_run_comes_back_without_its_assessments(store: AssessmentStore) -> None:
    run = run_result(before=assessment(), after=assessment())
    store.save(assessment(), run, link="/dags/d/runs/r")
    entry = loaded(store)
    assert entry.run == replace(run, before=None, after=None)
    assert entry.last_runs == run.last_runs
    assert entry.link == "/dags/d/runs/r"


def test_an_assessment_keeps_the_last_run(store: AssessmentStore) -> None:
    store.save(assessment(), run_result(), link="/first")
    later = assessment(assessed_at=NOW, status="nothing-due")
    store.save(later)
    entry = loaded(store)
    assert entry.assessment == later
    assert entry.run == run_result()
    assert entry.last_runs == run_result().last_runs
    assert entry.link == "/first"


def test_a_later_run_replaces_the_one_before(store: AssessmentStore) -> None:
    store.save(assessment(), run_result(), link="/first")
    again = LastRun(operation="fsck", at=NOW, version=1200, status="sound")
    store.save(assessment(), run_result(status="failed", last_runs=(again,)))
    entry = loaded(store)
    assert entry.run is not None
    assert entry.run.status == "failed"
    assert entry.last_runs == (again,)
    assert entry.link is None


def test_an_unreadable_table_keeps_its_last_health(store: AssessmentStore) -> None:
    failed = assessment(status="failed", problem="gone", health=None, operations=())
    store.save(assessment())
    for _ in range(2):
        store.save(failed)
        assert loaded(store).health == assessment().health
        assert loaded(store).assessment == failed
    well = assessment(health=health(seed=7))
    store.save(well)
    assert loaded(store).health == well.health
    assert loaded(store).last_health is None


def test_a_failure_starts_with_its_first_assessment(store: AssessmentStore) -> None:
    failed = assessment(status="failed", problem="gone", health=None, operations=())
    for hours in (0, 1, 2):
        store.save(replace(failed, assessed_at=NOW + timedelta(hours=hours)), link=f"/try/{hours}")
        assert loaded(store).failing_since == NOW
        assert loaded(store).assessed_link == f"/try/{hours}"
    store.save(assessment())
    assert loaded(store).failing_since is None


def test_summaries_of_the_last_runs_are_kept_except_of_runs_that_did_nothing(
    store: AssessmentStore,
) -> None:
    before = assessment(health=health(bytes_to_open=1_000))
    after = assessment(health=health(bytes_to_open=400))
    for number in range(HISTORY + 3):
        ended = NOW + timedelta(hours=number, seconds=30)
        run = run_result(
            started_at=NOW + timedelta(hours=number), ended_at=ended, before=before, after=after
        )
        store.save(assessment(), run, link=f"/runs/{number}")
    idle = run_result(outcomes=(), status="nothing-due", started_at=NOW + timedelta(days=9))
    store.save(assessment(), idle)
    history = loaded(store).history
    assert len(history) == HISTORY
    assert [run.link for run in history[:2]] == [f"/runs/{HISTORY + 2}", f"/runs/{HISTORY + 1}"]
    assert history[0].seconds == 30 and history[0].spared_bytes == 600
    assert history[0].bytes_to_open == BeforeAfter(before=1_000, after=400)
    assert history[0].operations == tuple(
        f"{each.operation}: {each.status}" for each in run_result().outcomes
    )
    failed = run_result(outcomes=(), status="failed", problem="x" * 1_000)
    store.save(assessment(), failed)
    assert loaded(store).history[0].problem == "x" * 300


def test_what_a_run_changed_is_kept(store: AssessmentStore) -> None:
    before = assessment(health=health(num_files=70, files_to_open=9))
    after = assessment(health=health(num_files=8, files_to_open=11))
    store.save(assessment(), run_result(before=before, after=after))
    (run,) = loaded(store).history
    assert run.data_files == BeforeAfter(before=70, after=8) and run.data_files.less == 62
    assert run.files_to_open is not None and run.files_to_open.less == 0
    store.save(assessment(), run_result(before=None, after=after))
    assert loaded(store).history[0].data_files is None


def test_the_newest_findings_of_fsck_are_kept(store: AssessmentStore) -> None:
    outcome = run_result().outcomes[0]
    for reason in ("first", "second"):
        found = replace(
            outcome, operation="fsck", status="planned", reason=reason, result={"findings": []}
        )
        store.save(assessment(), run_result(outcomes=(found,)))
    store.save(assessment(), run_result())
    assert [each.reason for each in loaded(store).reports] == ["second"]


def test_what_a_run_deleted_is_counted(store: AssessmentStore) -> None:
    outcome = run_result().outcomes[-1]
    outcomes = tuple(
        replace(outcome, freed=Freed(deleted_bytes=size, state=state, at=at, why="as it is"))
        for size, state, at in (
            (70, "freed", None),
            (7, "later", NOW + timedelta(days=7)),
            (1, "never", None),
        )
    )
    store.save(assessment(), run_result(outcomes=outcomes))
    (run,) = loaded(store).history
    assert run.reclaimed_bytes == 78
    assert freed_bytes(run.freed, NOW) == 70
    assert freed_bytes(run.freed, NOW + timedelta(days=7)) == 77


@pytest.mark.parametrize(
    "operation", ["WRITE", "}]", '}],"num_files":0,"x":"', "}]}", '"commits":[{', "é }]\\"]
)
def test_all_entries_are_read_without_their_commits_whatever_these_contain(
    store: AssessmentStore, operation: str
) -> None:
    known = health()
    commits = tuple(replace(each, operation=operation) for each in known.commits)
    store.save(assessment(health=replace(known, commits=commits)))
    store.save(assessment("broken", health=known))
    store.save(assessment("broken", status="failed", health=None, operations=()))
    for entry in store.load_all():
        assert isinstance(entry, AssessmentEntry)
        assert entry.health == replace(known, commits=())


def test_forgotten_patterns_are_deleted_and_tables_have_a_time(store: AssessmentStore) -> None:
    began = datetime.now(UTC)
    for name in ("a", "b"):
        store.save(assessment(name))
    store.save(unlisted := assessment("s3://lake/**", uri="s3://lake/**", subject="pattern"))
    at = store.saved_at()("s3a://lake/sales/a/", "a")
    assert at is not None and abs(at - began) < timedelta(minutes=1)
    assert store.saved_at()("s3://lake/sales/c", "c") is None
    assert loaded(store, "s3://lake/**").assessment == unlisted
    store.forget("s3://lake/**")
    store.forget("s3://lake/**")
    assert store.load("s3://lake/**") is None
    assert len(store.load_all()) == 2


@given(st.lists(st.text(min_size=1).filter(str.isprintable), min_size=1, max_size=5, unique=True))
def test_any_names_come_back_each_with_an_address_of_its_own(names: list[str]) -> None:
    store = AssessmentStore(f"memory://assessments-{uuid4()}")
    for number, name in enumerate(names):
        store.save(assessment(name, uri=f"s3://lake/{number}", health=None))
    assert [
        entry.name for entry in store.load_all() if isinstance(entry, AssessmentEntry)
    ] == sorted(names)
    for number, name in enumerate(names):
        assert loaded(store, f"s3://lake/{number}") == store.find_by_name(name)


@pytest.mark.parametrize(
    "text", ["../../etc/passwd", "/", ".", "..", ".hidden", "a/b\\c", "x" * 3_000, "ä ö\n\t", "CON"]
)
@pytest.mark.parametrize("subject", ["table", "pattern"])
def test_no_address_leaves_the_folder(
    store: AssessmentStore, text: str, subject: Any, tmp_path: Path
) -> None:
    store.save(assessment(text, uri=text, health=None, subject=subject))
    assert loaded(store, text).name == text
    assert the_file(store).parent == Path(store.uri)
    assert {path.name for path in tmp_path.iterdir()} == {"not"}
    assert len(store.load_all()) == 1


def test_addresses_that_differ_in_case_only_do_not_share_a_file_anywhere(
    store: AssessmentStore,
) -> None:
    for name in ("Orders", "orders", "ORDERS"):
        store.save(assessment(name))
    files = [path.name.lower() for path in Path(store.uri).iterdir()]
    assert len(set(files)) == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b'{"form": 1, "assess', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"form": NaN}', "not JSON"),
        (b"[]", "AssessmentEntry"),
        (b'"text"', "AssessmentEntry"),
        (b"null", "AssessmentEntry"),
        (b"{}", "assessment"),
        (b'{"assessment": {"health": 7}}', "assessment"),
        (b" " * (MAX_BYTES + 1), "longer than 524,288 bytes"),
    ],
)
def test_an_invalid_entry_is_reported_and_replaced(
    store: AssessmentStore, content: bytes, problem: str
) -> None:
    store.save(assessment())
    the_file(store).write_bytes(content)
    entry = store.load(ORDERS)
    assert isinstance(entry, UnreadableEntry)
    assert entry.file == the_file(store).name
    assert problem in entry.problem
    assert len(entry.problem) < 1_000
    assert store.load_all() == (entry,)
    store.save(assessment())
    assert loaded(store).assessment == assessment()


@pytest.mark.parametrize(("key", "value"), [("form", 2), ("colour", "red")])
def test_an_entry_of_another_release_is_reported(
    store: AssessmentStore, key: str, value: Any
) -> None:
    store.save(assessment())
    entry = json.loads(the_file(store).read_text())
    the_file(store).write_text(json.dumps({**entry, key: value}))
    assert isinstance(store.load(ORDERS), UnreadableEntry)


def test_a_copied_entry_is_reported(store: AssessmentStore) -> None:
    store.save(assessment())
    file = the_file(store)
    store.save(assessment("users"))
    (other,) = set(Path(store.uri).iterdir()) - {file}
    file.write_bytes(other.read_bytes())
    entry = store.load(ORDERS)
    assert isinstance(entry, UnreadableEntry)
    assert "another table, 'users'" in entry.problem


def test_one_damaged_entry_hides_no_other(store: AssessmentStore) -> None:
    store.save(assessment())
    the_file(store).write_text("no JSON")
    store.save(assessment("users"))
    first, second = store.load_all()
    assert isinstance(first, AssessmentEntry)
    assert isinstance(second, UnreadableEntry)


def test_other_files_are_no_entries(store: AssessmentStore) -> None:
    store.save(assessment())
    for name in (".orders.1.json", "README.md", "orders.json.tmp"):
        (Path(store.uri) / name).write_text("something else")
    assert len(store.load_all()) == 1


def test_the_overview_omits_details_of_single_tables(store: AssessmentStore) -> None:
    store.save(assessment())
    (entry,) = store.load_all()
    assert isinstance(entry, AssessmentEntry)
    assert entry.health == replace(health(), commits=())
    store.save(assessment(status="failed", health=None))
    (entry,) = store.load_all()
    assert isinstance(entry, AssessmentEntry)
    assert entry.health == replace(health(), commits=())
    assert loaded(store).health == health()


def test_the_overview_reads_only_what_has_changed(store: AssessmentStore) -> None:
    for name in ("a", "b", "c"):
        store.save(assessment(name))
    store.load_all()
    read = reads_of(store)
    store.load_all()
    assert read == []
    store.save(assessment("b", notes=("changed",)))
    read.clear()
    entries = store.load_all()
    assert [path.split(".")[0] for path in read] == ["sales-b"]
    assert [entry.assessment.notes for entry in entries if isinstance(entry, AssessmentEntry)] == [
        (),
        ("changed",),
        (),
    ]


def test_an_entry_that_vanishes_during_the_listing_is_skipped(
    store: AssessmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(assessment())
    store.save(assessment("users"))
    inner = store.store
    listing = list(inner.list_from(""))

    def stale(directory: str, start: str = "") -> Iterator[FileStatus]:
        return iter(listing)

    monkeypatch.setattr(inner, "list_from", stale)
    inner.delete(listing[0].path)
    assert [entry.name for entry in store.load_all() if isinstance(entry, AssessmentEntry)] == [
        "users"
    ]


def test_an_unavailable_store_is_an_error_and_is_tried_again(
    store: AssessmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(assessment())

    def down(path: str) -> bytes:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.store, "read", down)
        with pytest.raises(StorageError):
            store.load(ORDERS)
        with pytest.raises(StorageError):
            store.load_all()
    assert len(store.load_all()) == 1


def test_long_entries_lose_their_least_important_parts(
    store: AssessmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"files": ["x" * 100] * 10_000}
    run = run_result()
    wordy = replace(run, outcomes=(replace(run.outcomes[0], result=long), run.outcomes[1]))
    store.save(assessment(), wordy)
    entry = loaded(store)
    assert entry.run is not None
    assert [outcome.result for outcome in entry.run.outcomes] == [None, None]
    assert entry.health == health()

    monkeypatch.setattr(entries, "MAX_BYTES", 10_000)
    store.save(assessment(), wordy)
    assert loaded(store).health == replace(health(), commits=())
    huge = replace(health(), properties={f"p{number}": "x" * 100 for number in range(500)})
    store.save(assessment(health=huge, notes=("x" * 9_000,)), wordy)
    assert loaded(store).health is None
    assert loaded(store).assessment.notes == ()
    with pytest.raises(InvalidRequestError, match="longer than 10,000 bytes"):
        store.save(replace(assessment(), name="x" * 11_000))


def test_readers_beside_a_writer_only_see_whole_entries(store: AssessmentStore) -> None:
    done = threading.Event()

    def write() -> None:
        number = 0
        # On a busy machine, the other thread may begin to read late.
        while number < 60 or (seen < 10 and number < 10_000):
            store.save(assessment(assessed_at=NOW + timedelta(seconds=number)))
            number += 1
        done.set()

    store.save(assessment())
    seen = 0
    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert isinstance(store.load(ORDERS), AssessmentEntry)
        (entry,) = store.load_all()
        assert isinstance(entry, AssessmentEntry)
        seen += 1
    writer.join()
    assert seen


def reads_of(store: AssessmentStore) -> list[str]:
    """Collects the paths that are read from now on."""
    inner: Store = store.store
    paths: list[str] = []
    read = inner.read

    def noted(path: str) -> bytes:
        paths.append(path)
        return read(path)

    inner.read = noted  # type: ignore[method-assign]
    return paths
