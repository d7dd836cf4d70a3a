"""`drop-feature`: options in, Plan or Result out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import open_table
from delta_maintenance.operations.drop_feature import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
)
from delta_maintenance.storage.local import LocalStore
from tests.support.tables.droppable_tables import TABLES
from tests.support.tables.table_builder import TableBuilder

Build = Callable[[str], TableBuilder]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda feature: TABLES[feature].build(LocalStore(str(tmp_path)))


def test_the_default_is_that_of_the_operation(cli: Any) -> None:
    said = " ".join(cli("drop-feature", "--help-all").out.split())
    assert f"by default {DropFeatureOptions(feature='x').files_per_commit}" in said


def test_a_dry_run_prints_the_plan(cli: Any, build: Build) -> None:
    builder = build("v2Checkpoint")
    before = builder.names()
    words = ("drop-feature", builder.store.root, "--feature", "v2Checkpoint", "--dry-run")
    outcome = cli(*words, "--json")
    plan = DropFeaturePlan.from_json(outcome.document)
    assert outcome.status == 0 and plan.ends == "dropped" and builder.names() == before
    assert set(outcome.document) == {field.name for field in fields(DropFeaturePlan)}
    said = cli(*words).out
    for word in ("barrier-checkpoints", "checkpointProtection", "opened to", "cut off"):
        assert word in said


def test_the_result_reports_what_was_done(cli: Any, build: Build) -> None:
    builder = build("rowTracking")
    root = builder.store.root
    words = ("drop-feature", root, "--feature", "rowTracking", "--files-per-commit", 2)
    outcome = cli(*words, "--operation-id", "mine", "--json")
    result = DropFeatureResult.from_json(outcome.document)
    assert (outcome.status, result.status) == (0, "dropped")
    assert [c.kind for c in result.commits] == ["switch-off", "strip-files", "strip-files", "drop"]
    assert open_table(root).history(limit=1)[0].commit_info["operationId"] == "mine"
    again = cli(*words)
    assert again.status == 0 and "nothing to do" in again.out


def test_a_drop_that_has_to_wait_says_until_when(cli: Any, build: Build) -> None:
    builder = build("deletionVectors")
    words = ("--feature", "deletionVectors", "--truncate-history")
    outcome = cli("drop-feature", builder.store.root, *words, "--json")
    result = DropFeatureResult.from_json(outcome.document)
    assert (outcome.status, result.status) == (0, "waiting") and result.ready_at is not None
    assert f"run again at {result.ready_at:%Y-%m-%dT%H:%M:%SZ} or later" in outcome.err
    said = cli("drop-feature", builder.store.root, *words, "--dry-run").out
    assert "in the way" in said and "waiting" in said


@pytest.mark.parametrize(
    ("feature", "status", "words"),
    [
        ("appendOnly", 3, "cannot be dropped"),
        ("unheardOf", 3, "unknown table feature"),
        ("checkpointProtection", 0, "nothing to do"),
    ],
)
def test_other_features_are_dropped(
    cli: Any, build: Build, feature: str, status: int, words: str
) -> None:
    builder = build("deletionVectors")
    history = () if feature != "checkpointProtection" else ("--truncate-history",)
    outcome = cli("drop-feature", builder.store.root, "--feature", feature, *history)
    assert outcome.status == status and words in outcome.out + outcome.err


def test_a_feature_has_to_be_named(cli: Any, build: Build) -> None:
    builder = build("deletionVectors")
    assert cli("drop-feature", builder.store.root).status == 2
    assert cli("drop-feature", builder.store.root, "--feature", "x", "--files-per-commit", 0)
