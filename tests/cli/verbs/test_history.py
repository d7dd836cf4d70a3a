"""`history`: newest first, right versions even where commits say nothing of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tables.actions import commit_info
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder


def test_commits_come_newest_first_with_the_version_of_their_file(
    cli: Any, builder: TableBuilder
) -> None:
    builder.commit([commit_info("DELETE", engineInfo="Engine/1", version=99)])
    outcome = cli("history", builder.store.root, "--json")
    assert outcome.status == 0 and outcome.err == ""
    document = outcome.document
    assert document[0] == {
        "version": 3,
        "timestamp_ms": EPOCH_MS + 3 * MINUTE_MS,
        "operation": "DELETE",
        "commitInfo": {"operation": "DELETE", "engineInfo": "Engine/1", "version": 99},
        "readable": True,
    }
    assert [entry["version"] for entry in document] == [3, 2, 1, 0]
    assert document[1] == {
        "version": 2,
        "timestamp_ms": EPOCH_MS + 2 * MINUTE_MS,
        "operation": None,
        "commitInfo": {},
        "readable": True,
    }


def test_a_limit_keeps_the_newest(cli: Any, table: str) -> None:
    document = cli("history", table, "--json", "--limit", 2).document
    assert [entry["version"] for entry in document] == [2, 1]


def test_people_get_a_line_per_commit(cli: Any, builder: TableBuilder) -> None:
    builder.commit([commit_info("OPTIMIZE", engineInfo="Engine/1")])
    outcome = cli("history", builder.store.root)
    assert outcome.status == 0 and outcome.err == ""
    [line] = [line for line in outcome.out.splitlines() if "OPTIMIZE" in line]
    assert line.split() == ["3", "2023-11-14T22:16:20Z", "OPTIMIZE", "Engine/1"]
    builder.store.delete(f"_delta_log/{0:020}.json")
    assert "3 (cannot be opened)" in cli("history", builder.store.root).out


def test_real_tables_list_every_retained_commit(cli: Any, corpus: Path) -> None:
    for name in ("golden-time-travel-schema-changes-b", "deltars-checkpoints_vacuumed"):
        expected = json.loads((corpus / "expected" / f"{name}.json").read_text())
        operations = {
            int(number): version["commit"]["operation"]
            for number, version in expected["versions"].items()
            if version.get("commit")
        }
        document = cli("history", corpus / name, "--json").document
        assert {entry["version"]: entry["operation"] for entry in document} == operations
        versions = [entry["version"] for entry in document]
        assert versions == sorted(versions, reverse=True)
