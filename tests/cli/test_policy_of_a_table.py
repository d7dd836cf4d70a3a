"""Verbs on one table, and the policy that keeps versions and files of this table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.policies.promises.for_operation import VARIABLE
from tests.support.tables.actions import add, metadata, protocol, remove
from tests.support.tables.table_builder import TableBuilder

DAY = 24 * 3600


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableBuilder:
    """A table whose version 0 has a file that version 1 removed 40 days ago. Its folder is in the
    working directory.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    table = TableBuilder(tmp_path / "orders")
    old_ms = int((time.time() - 40 * DAY) * 1000)
    table.commit([protocol(), metadata(), add("old.parquet"), add("live.parquet")])
    table.commit([remove("old.parquet", deletionTimestamp=old_ms)])
    for name in ("old.parquet", "live.parquet"):
        table.store.put(name, b"x")
    for path in (tmp_path / "orders").rglob("*"):
        os.utime(path, (old_ms / 1000, old_ms / 1000))
    return table


def write_policy(path: Path, lake: TableBuilder, **rules: Any) -> None:
    # JSON is YAML; the first key begins a line.
    tables = [{"name": "orders", "uri": lake.store.root, **rules}]
    path.write_text(f"version: 1\ntables: {json.dumps(tables)}\n")


KEEP: dict[str, Any] = {"keep": [{"name": "audit", "version": 0, "why": "the auditors"}]}


def test_a_vacuum_by_hand_warns_of_a_policy_and_keeps_what_it_keeps_with_a_flag(
    cli: Any, lake: TableBuilder, tmp_path: Path
) -> None:
    write_policy(tmp_path / "policy.yaml", lake, **KEEP)
    (tmp_path / "broken.yaml").write_text("tables: [")
    (tmp_path / "other.yml").write_text("steps: []\n")
    for address in ("orders", lake.store.root):
        outcome = cli("vacuum", address, "--dry-run", "--json")
        assert outcome.document["files"] == 1 and outcome.status == 0
        assert outcome.err.count("warning: ") == 1
        assert "the policy policy.yaml names this table and keeps versions or" in outcome.err
        assert "kept version audit" in outcome.err and "--policy policy.yaml" in outcome.err
    kept = cli("vacuum", "orders", "--policy", "policy.yaml", "--json")
    assert (kept.status, kept.document["status"], kept.err) == (0, "nothing-to-do", "")
    assert [held["holder"] for held in kept.document["held"]] == ["kept version audit"]
    assert lake.store.stat("old.parquet") is not None
    assert "warning" not in cli("checkpoint", "orders", "--dry-run").err
    assert cli("vacuum", "orders", "--json").document["deleted"] == 1


def test_readers_clones_and_retentions_of_a_policy_are_kept(
    cli: Any, lake: TableBuilder, tmp_path: Path
) -> None:
    clone = TableBuilder(tmp_path / "clone")
    clone.commit([protocol(), metadata(), add(f"file://{lake.store.root}/old.parquet")])
    policy = tmp_path / "rules" / "lake.yaml"
    policy.parent.mkdir()
    words = ("vacuum", "orders", "--dry-run", "--json")

    tables = [{"name": name, "uri": str(tmp_path / name)} for name in ("orders", "clone")]
    policy.write_text(f"version: 1\ntables: {json.dumps(tables)}\n")
    assert cli(*words).err == "", "the policy is in another folder"
    (held,) = cli(*words, "--policy", policy).document["held"]
    assert held["holder"].endswith("/clone") and held["files"] == 1

    write_policy(policy, lake, vacuum={"retention": "60 days"})
    planned = cli(*words, "--policy", policy).document
    assert (planned["retention"], planned["files"]) == ("P60D", 0)
    refused = cli(*words, "--retention", "30 days", "--policy", policy)
    assert refused.status == 3 and "shorter than that of the policy, 60 days" in refused.err

    write_policy(policy, lake, readers=[{"share": "partner", "max_lag": "90 days"}])
    (held,) = cli(*words, "--policy", policy).document["held"]
    assert held["holder"] == "share partner"
    cleaned = cli("clean-log", "orders", "--policy", policy, "--dry-run", "--json")
    assert cleaned.status == 0, cleaned.err


def test_a_policy_of_the_environment_warns_and_one_without_the_table_is_refused(
    cli: Any, lake: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "elsewhere" / "p.yaml"
    policy.parent.mkdir()
    write_policy(policy, lake)
    assert cli("vacuum", "orders", "--dry-run").err == ""
    monkeypatch.setenv(VARIABLE, str(policy))
    warned = cli("vacuum", "orders", "--dry-run").err
    assert f"the policy {policy} names this table, and vacuum does not apply it" in warned
    other = TableBuilder(tmp_path / "customers")
    other.commit([protocol(), metadata()])
    assert cli("vacuum", "customers", "--dry-run").err == ""
    refused = cli("vacuum", "customers", "--policy", policy)
    assert refused.status == 2 and "the policy does not name this table" in refused.err
