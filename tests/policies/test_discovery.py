"""From patterns to tables: what is found, under which name, with whose rules, at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError, StorageAccessError, StorageError
from delta_maintenance.operations.core.policy_values import StorageRule
from delta_maintenance.policies import discovery
from delta_maintenance.policies.definition import Pattern, Policy, PolicyTable
from delta_maintenance.policies.discovery import discover
from delta_maintenance.storage import MemoryStore, Store, open_store

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FOLDERS = (
    "a/x",
    "a/y",
    "b/x",
    "b/x/nested/in/a/table",
    "b/_hidden/x",
    "b/.hidden/x",
    "b/deep/er/z",
    "scratch/q",
    "scratchpad",
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Folders with logs, and folders that only look like tables."""
    for folder in FOLDERS:
        log = tmp_path / "lake" / folder / "_delta_log"
        log.mkdir(parents=True)
        (log / "00000000000000000000.json").write_text("{}")
    (tmp_path / "lake" / "a" / "z").mkdir()
    (tmp_path / "lake" / "a" / "_delta_log.txt").write_text("")
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "lake" / "a" / "x")
    return tmp_path / "lake"


def policy(*tables: Mapping[str, Any], **defaults: Any) -> Policy:
    """A policy of these entries."""
    return Policy.from_json({"version": 1, "defaults": defaults, "tables": list(tables)})


def found(lake: Path, *tables: Mapping[str, Any]) -> dict[str, str]:
    """Names and paths below the lake, in their order."""
    return {
        table.name: table.uri.removeprefix(f"{lake}").lstrip("/")
        for table in discover(policy(*tables), pauses=()).complete()
    }


def test_a_recursive_root_contains_every_outermost_table(lake: Path) -> None:
    paths = ["a/x", "a/y", "b/deep/er/z", "b/x", "scratch/q", "scratchpad"]
    assert found(lake, {"pattern": f"{lake}/**"}) == {path: path for path in paths}


def test_one_star_is_one_folder(lake: Path) -> None:
    assert list(found(lake, {"pattern": f"{lake}/*/x"})) == ["a/x", "b/x"]
    assert list(found(lake, {"pattern": f"{lake}/*"})) == ["scratchpad"]
    assert list(found(lake, {"pattern": f"{lake}/a/?"})) == ["x", "y"]
    assert list(found(lake, {"pattern": f"{lake}/b/**/z"})) == ["deep/er/z"]


def test_a_pattern_without_a_star_finds_the_table_itself(lake: Path) -> None:
    assert found(lake, {"pattern": f"{lake}/a/x"}) == {f"{lake}/a/x": "a/x"}
    assert found(lake, {"name": "n", "pattern": f"{lake}/a/x/**"}) == {"n": "a/x"}


def test_exclusions_leave_out_a_folder_with_all_below_it_and_nothing_beside_it(lake: Path) -> None:
    pattern = {"pattern": f"{lake}/**", "exclude": [f"{lake}/scratch", f"{lake}/*/x"]}
    assert list(found(lake, pattern)) == ["a/y", "b/deep/er/z", "scratchpad"]


def test_the_name_of_a_pattern_precedes_those_of_its_tables(lake: Path) -> None:
    assert found(lake, {"name": "bronze", "pattern": f"{lake}/a/*"}) == {
        "bronze/x": "a/x",
        "bronze/y": "a/y",
    }


def test_named_tables_come_first_and_are_not_found_again(lake: Path) -> None:
    named = {"name": "mine", "uri": f"{lake}/b/x"}
    assert found(lake, {"pattern": f"{lake}/*/x"}, named) == {"mine": "b/x", "a/x": "a/x"}


def test_two_patterns_that_find_one_table_give_it_once_with_the_rules_of_the_first(
    lake: Path,
) -> None:
    tables = discover(
        policy(
            {"pattern": f"{lake}/a/*", "checkpoint": {"max_commits": 1}},
            {"pattern": f"{lake}/**", "checkpoint": {"max_commits": 2}, "fsck": True},
        )
    ).tables
    rules = {table.uri.removeprefix(f"{lake}/"): table.rules for table in tables}
    assert len(rules) == len(tables) == 6
    assert rules["a/x"].checkpoint is not None and rules["a/x"].checkpoint.max_commits == 1
    assert rules["a/x"].fsck is None and rules["b/x"].fsck is not None


def test_two_tables_of_one_name_are_refused(lake: Path) -> None:
    entries = ({"pattern": f"{lake}/a/*"}, {"pattern": f"{lake}/b/*"})
    with pytest.raises(InvalidRequestError, match="both named x; give the patterns names"):
        found(lake, *entries)


def test_a_pattern_without_a_table_is_a_line(lake: Path) -> None:
    patterns = [f"{lake}/none/**", f"{lake}/b/none*", f"{lake}/a/*"]
    discovery = discover(policy(*({"pattern": pattern} for pattern in patterns)))
    assert discovery.complete() and discovery.empty == tuple(patterns[:2])
    assert [*discovery.warnings()] == [f"no table matches {pattern}" for pattern in patterns[:2]]


def test_a_listing_that_fails_is_an_error(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(uri: str, options: Mapping[str, str]) -> Store:
        store = open_store(uri, options)
        level = store.list_level

        def list_level(directory: str = "") -> pa.Table | None:
            if directory == "b":
                raise StorageError("the store is down", remedy="wait")
            return level(directory)

        monkeypatch.setattr(store, "list_level", list_level)
        return store

    monkeypatch.setattr(discovery, "open_store", failing)
    with pytest.raises(StorageError, match="the store is down"):
        found(lake, {"pattern": f"{lake}/**"})


def test_a_pattern_that_cannot_be_listed_fails_alone(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def failing(uri: str, options: Mapping[str, str]) -> Store:
        opened.append(uri.removeprefix(f"{lake}/"))
        if uri.endswith("/b"):
            raise StorageAccessError("the store turns us away", remedy="correct the credentials")
        if uri.endswith("/scratch"):
            raise RuntimeError("a defect")
        return open_store(uri, options)

    monkeypatch.setattr(discovery, "open_store", failing)
    entries = [{"pattern": f"{lake}/{folder}/*"} for folder in ("b", "scratch", "a")]
    named = {"name": "mine", "uri": f"{lake}/scratchpad"}
    seen = discover(policy(*entries, named), sleep=lambda _: None)
    assert [table.name for table in seen.tables] == ["mine", "x", "y"]
    assert [failed.pattern for failed in seen.unlisted] == [f"{lake}/b/*", f"{lake}/scratch/*"]
    # Wrong credentials stay wrong; an unexpected error may pass.
    assert sorted(opened) == ["a", "b", "scratch", "scratch", "scratch"]
    turned_away, defect = (failed.assessment(now=NOW) for failed in seen.unlisted)
    assert turned_away.subject == "pattern" and turned_away.name == f"{lake}/b/*"
    assert turned_away.problem == (
        f"table {lake}/b: the store turns us away; correct the credentials"
    )
    assert (turned_away.exit_status, turned_away.retryable) == (1, False)
    assert defect.problem is not None and "RuntimeError: a defect" in defect.problem
    with pytest.raises(StorageAccessError):
        seen.complete()


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_an_unavailable_store_is_tried_again(
    failures: int, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def failing(uri: str, options: Mapping[str, str]) -> Store:
        opened.append(uri.removeprefix(f"{lake}/"))
        if uri.endswith("/b") and opened.count("b") <= failures:
            raise StorageError("the store is down", remedy="wait")
        return open_store(uri, options)

    monkeypatch.setattr(discovery, "open_store", failing)
    slept: list[float] = []
    entries = [{"name": name, "pattern": f"{lake}/{name}/*"} for name in ("b", "a")]
    seen = discover(policy(*entries), pauses=(2, 8), sleep=slept.append)
    found = [table.uri.removeprefix(f"{lake}/") for table in seen.tables]
    assert found == ([] if failures == 3 else ["b/x"]) + ["a/x", "a/y"]
    assert opened.count("a") == 1 and opened.count("b") == min(failures, 2) + 1
    assert slept == [2, 8][:failures]
    assert len(seen.unlisted) == (failures == 3)
    assert all(failed.assessment(now=NOW).retryable for failed in seen.unlisted)


def test_neither_tables_nor_hidden_nor_excluded_folders_are_entered(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def watched(uri: str, options: Mapping[str, str]) -> Store:
        store = open_store(uri, options)
        level = store.list_level

        def list_level(directory: str = "") -> pa.Table | None:
            listed.append(directory)
            return level(directory)

        monkeypatch.setattr(store, "list_level", list_level)
        return store

    monkeypatch.setattr(discovery, "open_store", watched)
    found(lake, {"pattern": f"{lake}/**", "exclude": [f"{lake}/scratch"]})
    tables = ["a/x", "a/y", "b/deep/er/z", "b/x", "scratchpad"]
    assert sorted(listed) == sorted(["", "a", "a/z", "b", "b/deep", "b/deep/er", *tables])
    listed.clear()
    found(lake, {"pattern": f"{lake}/*/x"})
    assert sorted(listed) == ["", "a", "a/x", "b", "b/x", "scratch", "scratchpad"]
    listed.clear()
    found(lake, {"pattern": f"{lake}/*"})
    assert sorted(listed) == ["", "a", "b", "scratch", "scratchpad"]


def test_a_store_that_only_lists_everything_gives_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(Address.parse("memory://lists-everything"))
    for folder in FOLDERS:
        store.put(f"{folder}/_delta_log/{0:020}.json", b"{}")
        store.put(f"{folder}/part.parquet", b"")
    monkeypatch.setattr(discovery, "open_store", lambda uri, options: store)
    assert store.list_level() is None
    names = [
        table.name for table in discover(policy({"pattern": "memory://lists-everything/**"})).tables
    ]
    assert names == ["a/x", "a/y", "b/deep/er/z", "b/x", "scratch/q", "scratchpad"]


def test_the_pattern_has_the_storage_options_of_its_root(lake: Path) -> None:
    asked: list[tuple[str | None, str]] = []

    def options(rule: StorageRule, root: str) -> dict[str, str]:
        asked.append((rule.connection, root))
        return {}

    entry = {"pattern": f"{lake}/**", "storage": {"connection": "own"}}
    own = policy(entry, storage={"connection": "default"})
    tables = discover(own, storage_options=options).tables
    assert asked == [("own", str(lake))]
    assert {table.rules.storage.connection for table in tables} == {"own"}
    assert PolicyTable.from_json(tables[0].to_json()) == tables[0]


_SEGMENT = st.text("ab*?.[", min_size=1, max_size=3)
_NAME = st.text("ab.[", min_size=1, max_size=3)


@given(st.lists(_SEGMENT | st.just("**"), min_size=1, max_size=3), st.lists(_NAME, max_size=4))
def test_every_folder_above_a_match_is_searched(segments: list[str], path: list[str]) -> None:
    pattern = Pattern("/".join(["/lake", *segments]))
    uri = "/".join(["/lake", *path])
    if not pattern.matches(uri) or len(uri) <= len(pattern.root):
        return
    below = uri[len(pattern.root) :].strip("/").split("/")
    for end in range(1, len(below) + 1):
        assert pattern.leads_on("/".join(below[:end]))


@pytest.mark.parametrize(
    ("text", "uri", "matches"),
    [
        ("/lake/*", "/lake/a", True),
        ("/lake/*", "/lake/a/b", False),
        ("/lake/*", "/lake", False),
        ("/lake/?", "/lake/ab", False),
        ("/lake/**", "/lake/a/b", True),
        ("/lake/**", "/lake", True),
        ("/lake/**", "/lakes", False),
        ("/lake/**/x", "/lake/x", True),
        ("/lake/**/x", "/lake/a/b/x/", True),
        ("/lake/**/x", "/lake/ax", False),
        ("/lake/a.b", "/lake/aXb", False),
        ("/lake/[a]", "/lake/a", False),
    ],
)
def test_addresses_that_a_pattern_matches(text: str, uri: str, matches: bool) -> None:
    assert Pattern(text).matches(uri) is matches


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("s3://lake/**", "s3://lake"),
        ("s3://lake/*/x", "s3://lake"),
        ("/lake/ev*/x", "/lake"),
        ("/lake/x", "/lake/x"),
        ("/*", "/"),
    ],
)
def test_the_root_is_the_fixed_beginning(text: str, root: str) -> None:
    assert Pattern(text).root == root
