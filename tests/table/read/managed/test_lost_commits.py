"""A commit that the catalog of a table states and that has no file: every reader says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance import open_table
from delta_maintenance.cli.main import main
from delta_maintenance.clock import instant
from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations.fsck import Finding
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.operations.health import measure
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable, serve_unity
from tests.support.tables.managed import STAGED, Managed, commit_path, live_paths

NOW = instant(5_000)
NAME = "uc://main.s.t"
STAGED_FILE = f"{3:020}.{3:08}-0000-4000-8000-000000000000.json"


def three_commits(managed: Managed) -> Managed:
    """Publishes two commits of three."""
    for _ in range(3):
        managed.ratify()
    for _ in range(2):
        managed.publish()
    return managed


def findings(managed: Managed) -> list[Finding]:
    found = examine(managed.table(), now=NOW, files=False).findings
    return [finding for finding in found.first(20) if finding.severity == "corrupt"]


@pytest.mark.conformance("CAT-03", "CAT-07")
def test_a_commit_that_was_reported_and_not_published_is_lost() -> None:
    managed = three_commits(Managed())
    before = managed.table().snapshot()
    follower = managed.table()
    earlier = follower.snapshot(2)
    managed.forget()
    for read in (
        managed.table().snapshot,
        managed.table().history,
        managed.table().latest_version,
        lambda: follower.forward(earlier),
    ):
        with pytest.raises(CorruptTableError) as caught:
            read()
        text = str(caught.value)
        assert "the catalog states version 3, but the log ends at version 2" in text
        loser = STAGED_FILE.replace("000000.json", "0000ff.json")
        assert f"could be it: _staged_commits/{STAGED_FILE}, _staged_commits/{loser};" in text
        assert caught.value.exit_status == 5
    assert live_paths(managed.table(), 2) == {"f0", "f1", "f2"}
    [finding] = findings(managed)
    assert (finding.kind, finding.version, finding.path) == ("lost-commit", 3, commit_path(3))
    assert STAGED_FILE in finding.problem and "version 2" in finding.problem
    # The remedy: the writer publishes the file that it committed.
    managed.publish()
    assert findings(managed) == []
    assert live_paths(managed.table()) == {*before.live_files()["path"].to_pylist()}


@pytest.mark.parametrize("staged", [True, False])
def test_the_checksum_of_a_lost_commit_is_not_to_be_deleted(staged: bool) -> None:
    managed = three_commits(Managed())
    managed.forget()
    managed.store.put(f"_delta_log/{3:020}.crc", b"{}")
    stores = [managed.table()]
    if staged:
        # Without the catalog.
        stores.append(Table(managed.store))
    else:
        managed.lose_staged_files()
    for table in stores:
        found = examine(table, now=NOW, files=False).findings.first(20)
        assert "checksum-without-commit" not in {finding.kind for finding in found}


def test_a_lost_commit_without_a_staged_file_is_named() -> None:
    managed = three_commits(Managed())
    managed.forget()
    managed.lose_staged_files()
    [finding] = findings(managed)
    assert "there is no staged file that could be the missing commit" in finding.problem
    assert finding.remedy.startswith("restore the commit from a backup")


def test_of_many_staged_files_a_few_are_named() -> None:
    managed = three_commits(Managed())
    managed.forget()
    for number in range(40):
        name = f"{3:020}.{number:08}-0000-4000-8000-0000000000aa.json"
        managed.store.put(f"{STAGED}/{name}", b"")
    [finding] = findings(managed)
    assert finding.problem.endswith(" and others") and finding.problem.count(".json") == 3


@pytest.mark.conformance("CAT-03")
def test_a_ratified_commit_whose_staged_file_does_not_exist_is_lost() -> None:
    managed = three_commits(Managed())
    managed.lose_staged_files()
    table = managed.table()
    for _ in range(2):
        with pytest.raises(CorruptTableError, match="states version 3, but the log ends at"):
            table.snapshot()
    assert [finding.kind for finding in findings(managed)] == ["lost-commit"]
    managed.publish()
    assert live_paths(table) == {"f0", "f1", "f2", "f3"}


def test_a_commit_that_is_lost_below_others_is_named_with_its_staged_files() -> None:
    managed = three_commits(Managed())
    managed.forget()
    managed.ratify()
    with pytest.raises(CorruptTableError, match="commit 3 is missing"):
        managed.table().snapshot()
    [gap] = [finding for finding in findings(managed) if finding.kind == "log-gap"]
    assert STAGED_FILE in gap.problem and gap.remedy.startswith("find out from the writer")


def test_a_commit_that_is_ratified_during_the_listing_is_not_lost() -> None:
    managed = three_commits(Managed())
    table = managed.table()
    store: Any = table.store
    listed = store.list_from("_delta_log")
    managed.ratify()
    [*store.list_from("_delta_log")]
    assert len([*listed]) == 4
    assert store.lost_commit(3) is None
    managed.publish()
    managed.publish()
    managed.report()
    assert store.lost_commit(3) is None


@given(
    actions=st.lists(
        st.sampled_from(
            ["ratify", "ratify", "publish", "publish", "report", "clean", "checkpoint"]
            + ["forget", "lose_staged_files"]
        ),
        max_size=25,
    )
)
@pytest.mark.conformance("CAT-03", "CAT-04")
def test_the_latest_version_is_read_or_nothing_is(actions: list[str]) -> None:
    """`forget` and `lose_staged_files` are what catalogs let any client do."""
    managed = Managed()
    table = managed.table()
    for action in actions:
        getattr(managed, action)()
    expected = {f"f{version}" for version in range(managed.latest + 1)}
    complete = managed.has_every_commit()
    for reader in (table, managed.table()):
        try:
            snapshot = reader.snapshot()
        except CorruptTableError:
            assert not complete
        else:
            assert complete and snapshot.version == managed.latest
            assert {*snapshot.live_files()["path"].to_pylist()} == expected
    assert complete == (not findings(managed))


@pytest.fixture
def unity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    """A table on disk whose catalog forgot version 3 before it was published."""
    managed = three_commits(Managed(LocalStore(str(tmp_path / "t"))))
    with serve_unity() as server:
        table = server.add("main.s.t", UnityTable(location=str(tmp_path / "t"), managed=True))
        table.latest = managed.latest
        monkeypatch.setenv("UNITY_CATALOG_URI", server.url)
        monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
        yield server


@pytest.mark.server
def test_every_verb_names_a_lost_commit(
    unity: UnityServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    stated = "the catalog states version 3, but the log ends at version 2"
    for verb in ("inspect", "files", "history", "health", "layout", "vacuum", "checkpoint"):
        assert (verb, main([verb, NAME])) == (verb, 5)
        [line] = capsys.readouterr().err.splitlines()
        assert stated in line and STAGED_FILE in line and NAME in line, verb
    for words in (["publish", NAME], ["publish", NAME, "--dry-run"]):
        assert main(words) == 5
        [line] = capsys.readouterr().err.splitlines()
        assert "version 3 was reported to the catalog as published" in line
        assert STAGED_FILE in line and NAME in line
    assert main(["fsck", NAME, "--json"]) == 5
    shown = json.loads(capsys.readouterr().out)
    kinds = {each["kind"]: each["problem"] for each in shown["findings"]}
    assert stated in kinds["lost-commit"] and STAGED_FILE in kinds["lost-commit"]
    assert main(["inspect", NAME, "--version", "2"]) == 0
    policy = {
        "version": 1,
        "defaults": {"checkpoint": True},
        "catalogs": {"main": {"kind": "unity"}},
        "tables": [{"catalog": "main.**"}],
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    for verb in ("assess", "run"):
        capsys.readouterr()
        assert main([verb, str(tmp_path / "policy.yaml")]) == 5
        assert stated in capsys.readouterr().err, verb
    assert {path for path in (tmp_path / "t").rglob("*") if path.is_file()} == files


@pytest.mark.server
def test_the_remedy_for_a_lost_commit_mends_the_table(unity: UnityServer, tmp_path: Path) -> None:
    log = tmp_path / "t" / "_delta_log"
    (log / f"{3:020}.json").write_bytes((log / "_staged_commits" / STAGED_FILE).read_bytes())
    assert open_table(NAME, unity.options).snapshot().version == 3
    for verb in ("inspect", "health"):
        assert main([verb, NAME]) == 0
    assert measure(open_table(NAME, unity.options).snapshot(), now=NOW).unreported_commits == 0
