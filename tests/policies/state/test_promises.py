"""What a policy holds is held: whatever options a caller gives, and by whatever name of a table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import DeltaTable, clock
from delta_maintenance.cli.main import main
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.holds import Holders, KeptVersion
from delta_maintenance.policies import RunResult
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.discovery import Discovery, discover, environment_options
from delta_maintenance.policies.execute import RunEnvironment
from delta_maintenance.policies.on_demand import run_operation
from delta_maintenance.policies.run import run
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import open_table
from tests.support.operations.held_tables import (
    FLAGS,
    HELD,
    HeldTable,
    command_lines,
    flag_names,
    option_cases,
    promised,
    some_cases,
)
from tests.support.operations.vacuum_cases import removed
from tests.support.suite.play import some
from tests.support.tables.actions import add
from tests.support.tables.vacuum_tables import NOW, Folder, named_memory


def on_demand(
    table: Folder,
    policy_table: PolicyTable,
    operation: str,
    options: Mapping[str, Any],
    **more: Any,
) -> RunResult:
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    environment = RunEnvironment(now=lambda: NOW, **more)
    return run_operation(
        table.open(), policy_table, operation, options=options, environment=environment
    )


def test_without_its_promises_these_files_would_go(tmp_path: Path) -> None:
    table, policy_table = promised(tmp_path)
    bare = Policy.from_json({"version": 1}).table_at(policy_table.uri)
    assert on_demand(table, bare, "vacuum", {}).status == "done"
    assert table.files() == {"5.parquet"}
    assert on_demand(table, bare, "clean-log", {}).status == "done"
    assert f"{4:020}.json" not in table.names()


def test_no_option_weakens_what_a_policy_holds(tmp_path: Path) -> None:
    held = HeldTable(tmp_path)
    for operation, options in some_cases(option_cases(), 60):
        held.play(
            (operation, options),
            lambda o=operation, g=options: on_demand(held.folder, held.policy_table, o, g),
        )


def test_no_argument_of_a_method_weakens_what_its_other_arguments_and_the_log_hold(
    tmp_path: Path,
) -> None:
    held = HeldTable(tmp_path, now=clock.now(), in_log=True)
    for operation, options in some_cases(option_cases(flag_names), 30):
        method = getattr(DeltaTable(held.uri), operation.replace("-", "_"))
        given = {**options, **held.holders_of(operation)}
        held.play((operation, given), partial(method, **given))


def test_no_word_of_a_command_line_weakens_what_its_other_words_the_log_and_a_policy_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_job(*_: Any, **__: Any) -> None:
        raise InvalidRequestError("no job", remedy="none")

    monkeypatch.setattr("delta_maintenance.cli.operation_verb.run_spark_job", refuse_job)
    # Some words are names of new files.
    monkeypatch.chdir(tmp_path)
    held = HeldTable(tmp_path, now=clock.now(), in_log=True)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"version": 1, "tables": [held.entry]}))
    for words in some(command_lines(held, policy), 40):
        held.play(words, partial(main, words))


@pytest.mark.parametrize("options", [{"holders": {}}, {"holders": {"keep": []}}, {"holders": None}])
def test_an_empty_holder_stands_for_those_of_the_policy(
    options: dict[str, Any], tmp_path: Path
) -> None:
    table, policy_table = promised(tmp_path)
    (outcome,) = on_demand(table, policy_table, "vacuum", options).outcomes
    assert outcome.status == "done" and table.files() == HELD | {"5.parquet"}
    assert outcome.result is not None
    assert {each["holder"].partition(" memory")[0] for each in outcome.result["held"]} == {
        "kept version audit",
        "last-read silver",
        "clone",
    }


def test_what_a_caller_holds_is_added(tmp_path: Path) -> None:
    table, policy_table = promised(tmp_path)
    table.log(removed("5.parquet", 30), add("6.parquet"), days=30)
    table.file("6.parquet")
    named_memory(f"memory://{tmp_path.name}/state").put("silver", b"6")
    more = Holders(keep=(KeptVersion(name="mine", version=5),))
    on_demand(table, policy_table, "vacuum", {"holders": more.to_json()})
    assert table.files() == {"1.parquet", "2.parquet", "5.parquet", "6.parquet"}


@pytest.mark.parametrize("value", ["", None, "PT0S", "7 days", "29 days", "0 days", 0])
@pytest.mark.parametrize("operation", ["vacuum", "clean-log"])
def test_a_request_does_not_shorten_the_retention_of_the_policy(
    operation: str, value: Any, tmp_path: Path
) -> None:
    table, policy_table = promised(tmp_path)
    own = Policy.from_json(
        {
            "version": 1,
            "defaults": {"vacuum": {"retention": "60 days"}, "clean_log": {"retention": "60 days"}},
        }
    ).table_at(policy_table.uri)
    option = "retention" if operation == "vacuum" else "log_retention"
    (outcome,) = on_demand(table, own, operation, {option: value}).outcomes
    assert table.files() >= HELD and f"{1:020}.json" in table.names()
    assert (outcome.status == "failed") is (value not in ("", None)), outcome.reason
    if outcome.status == "failed":
        if value == 0:
            assert "'0' is not a duration" in outcome.reason
            return
        assert "is shorter than that of the policy, 60 days" in outcome.reason
        # The remedies, which the message names.
        assert on_demand(table, own, operation, {}).status == "done"
        assert on_demand(table, own, operation, {option: value, **FLAGS}).status == "done"
        assert not table.files() >= HELD or f"{1:020}.json" not in table.names()


# One table by two names


def lake(path: Path) -> Folder:
    """A table on a local disk with files that are old enough to be deleted."""
    table = Folder(path / "real" / "orders", now=clock.now())
    table.log(add("1.parquet"), days=50)
    table.log(removed("1.parquet", 40), add("2.parquet"), days=40)
    table.checkpoint(2)
    table.file("1.parquet", "2.parquet", days=50)
    return table


def environment(policy: Policy) -> RunEnvironment:
    def options_at(rule: Any, _: str) -> Mapping[str, str]:
        return environment_options(rule)

    clones = PolicyClones(
        discover=lambda: discover(policy), options_at=options_at, policies=(policy,)
    )
    return RunEnvironment(clones=clones)


@pytest.mark.parametrize("operation", ["vacuum", "clean-log"])
@pytest.mark.parametrize("how", ["link", "link above", "pattern", "spelled", "outside"])
def test_an_entry_holds_what_another_entry_of_the_same_table_keeps(
    how: str, operation: str, tmp_path: Path
) -> None:
    table = lake(tmp_path)
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.symlink(tmp_path / "real" / "orders", tmp_path / "orders")
    keeps = {"keep": [{"name": "audit", "version": 1}]}
    real, other = f"{tmp_path}/real/orders", f"{tmp_path}/orders"
    own: dict[str, Any] = {"uri": other}
    entries = {
        "link": [own, {"uri": real, **keeps}],
        "link above": [{"uri": f"{tmp_path}/link/orders"}, {"uri": real, **keeps}],
        "pattern": [own, {"pattern": f"{tmp_path}/real/*", **keeps}],
        "spelled": [{"uri": f"{real}/"}, {"uri": f"file://{tmp_path}/x/../real/orders", **keeps}],
        "outside": [{"uri": real, **keeps}],
    }[how]
    policy = Policy.from_json({"version": 1, "tables": entries})
    policy_table = policy.table_at(other if how == "outside" else entries[0]["uri"])
    result = run_operation(
        open_table(policy_table.uri), policy_table, operation, environment=environment(policy)
    )
    assert result.status == "done", result.problem
    assert table.files() == {"1.parquet", "2.parquet"}
    assert f"{1:020}.json" in table.names()


def test_a_copy_of_a_table_is_another_table(tmp_path: Path) -> None:
    table = lake(tmp_path)
    copy = lake(tmp_path / "copy")
    copy.log(add("own.parquet"))
    entries = [
        {"uri": f"{tmp_path}/real/orders"},
        {"uri": f"{tmp_path}/copy/real/orders", "keep": [{"name": "audit", "version": 1}]},
    ]
    policy = Policy.from_json({"version": 1, "tables": entries})
    first = policy.named_tables[0]
    run_operation(open_table(first.uri), first, "vacuum", environment=environment(policy))
    assert table.files() == {"2.parquet"}


@pytest.mark.parametrize("longer", [True, False])
def test_the_longer_retention_of_two_entries_counts(longer: bool, tmp_path: Path) -> None:
    table = lake(tmp_path)
    os.symlink(tmp_path / "real" / "orders", tmp_path / "orders")
    entries: list[dict[str, Any]] = [
        {"uri": f"{tmp_path}/orders", "vacuum": {"retention": "30 days"}},
        {
            "uri": f"{tmp_path}/real/orders",
            "vacuum": {"retention": "60 days" if longer else "30 days"},
        },
    ]
    policy = Policy.from_json({"version": 1, "tables": entries})
    result = run(
        open_table(entries[0]["uri"]), policy.named_tables[0], environment=environment(policy)
    )
    assert result.status == "done"
    assert table.files() == ({"1.parquet", "2.parquet"} if longer else {"2.parquet"})


def test_the_command_line_keeps_what_an_entry_by_a_link_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lake(tmp_path)
    os.symlink(tmp_path / "real" / "orders", tmp_path / "orders")
    config = tmp_path / "policy.yaml"
    config.write_text(
        f"version: 1\ndefaults: {{vacuum: true}}\ntables:\n- uri: {tmp_path}/orders\n"
        f"- {{uri: {tmp_path}/real/orders, keep: [{{name: audit, version: 1}}]}}\n"
    )
    assert main(["run", str(config)]) == 0, capsys.readouterr()
    assert table.files() == {"1.parquet", "2.parquet"}


def test_an_entry_that_cannot_be_examined_stops_deletions_unless_the_policy_ignores_it(
    tmp_path: Path,
) -> None:
    table, policy_table = promised(tmp_path)
    bad = {"uri": f"memory://other-{tmp_path.name}/orders", "keep": [{"name": "x", "version": 1}]}

    def options_at(rule: Any, uri: str) -> Mapping[str, str]:
        if "other-" in uri:
            raise OSError("down")
        return {}

    for ignored in (False, True):
        own = {"uri": policy_table.uri, "clones": {"unreadable": "ignore" if ignored else "block"}}
        policy = Policy.from_json({"version": 1, "tables": [own, bad]})
        clones = PolicyClones(
            discover=lambda: Discovery(policy.named_tables),  # noqa: B023
            options_at=options_at,
            policies=(policy,),
        )
        first = policy.named_tables[0]
        result = on_demand(table, first, "clean-log", {}, clones=clones)
        assert (result.status == "done") is ignored
        if not ignored:
            assert "orders may be this table, and cannot be examined" in str(result.problem)
