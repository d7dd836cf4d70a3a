"""Real tables: what a vacuum takes away is missed by no version that is retained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import vacuum
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.operations.vacuum.references import read_references
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.table.read import Snapshot

NOW = datetime.now(UTC) + timedelta(days=4000)
"""When every file of the corpus is old, and every tombstone has expired."""
CLOCK_CHECK = "delta_maintenance.operations.vacuum.operation.require_same_clock"
SHORT = {"allow_short_retention": True, "no_other_writers": True}


def corpus_tables(corpus: Path) -> Iterator[Path]:
    for folder in sorted(corpus.iterdir()):
        if folder.is_dir() and (folder / "_delta_log").is_dir():
            yield folder


def referenced(snapshot: Snapshot, root: Path) -> set[Path]:
    """The files of the live adds of a version, found on the disk without the code under test."""
    found = set()
    for batch in snapshot.log.scan(fields={"add": ("path", "deletionVector"), "remove": ()}):
        for row in batch.adds.to_pylist():
            found |= {root / row["path"], root / unquote(row["path"])}
            vector = row.get("deletionVector")
            if vector is not None:
                place = DeletionVectorDescriptor.from_json(vector).relative_path()
                if place is not None:
                    found.add(root / place)
    return {path for path in found if path.is_file() and path.is_relative_to(root)}


def age(root: Path) -> None:
    """Makes everything of a copy old."""
    for path in root.rglob("*"):
        os.utime(path, (1_500_000_000, 1_500_000_000))


@pytest.mark.conformance("VAC-03", "VAC-04", "VAC-09")
def test_no_real_table_loses_a_file_of_its_newest_version(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Any
) -> None:
    monkeypatch.setattr(CLOCK_CHECK, lambda *_, **__: None)
    vacuumed = refused = deleted = 0
    for source in corpus_tables(corpus):
        root = tmp_path / source.name
        shutil.copytree(source, root, copy_function=shutil.copy)
        age(root)
        try:
            table = open_table(str(root))
            snapshot = table.snapshot()
            needed = referenced(snapshot, root)
            rows = sorted(snapshot.live_files()["path"].to_pylist())
            surveyed = vacuum.survey(
                snapshot,
                VacuumOptions(ignore_missing_files=True, log_commits=False, **SHORT),
                now=NOW,
            )
        except DeltaMaintenanceError:
            refused += 1
            continue
        result = vacuum.apply(table, surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)
        assert result.status in ("vacuumed", "nothing-to-do"), source.name
        assert all(path.is_file() for path in needed), source.name
        left = open_table(str(root)).snapshot()
        assert sorted(left.live_files()["path"].to_pylist()) == rows, source.name
        vacuumed, deleted = vacuumed + 1, deleted + result.deleted
        shutil.rmtree(root)
    assert vacuumed > 100 and deleted > 30
    count_cases("real tables vacuumed", vacuumed)
    count_cases("real tables refused", refused)


@pytest.mark.conformance("VAC-21")
def test_every_version_that_is_kept_keeps_its_files(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CLOCK_CHECK, lambda *_, **__: None)
    checked = 0
    for source in corpus_tables(corpus):
        root = tmp_path / source.name
        shutil.copytree(source, root, copy_function=shutil.copy)
        age(root)
        try:
            table = open_table(str(root))
            latest = table.snapshot()
            kept = latest.version // 2
            needed = referenced(table.snapshot(version=kept), root) | referenced(latest, root)
            options = VacuumOptions(
                ignore_missing_files=True, log_commits=False, keep_versions=(kept,), **SHORT
            )
            surveyed = vacuum.survey(latest, options, now=NOW)
        except DeltaMaintenanceError:
            continue
        vacuum.apply(table, surveyed.plan, context=RunContext.at(NOW), surveyed=surveyed)
        assert all(path.is_file() for path in needed), source.name
        checked += kept != latest.version
        shutil.rmtree(root)
    assert checked > 30


def test_every_vector_of_a_real_table_is_found(corpus: Path) -> None:
    table = open_table(str(corpus / "dat-deletion_vectors"))
    references, problem = read_references(table.snapshot(), deleted_before_ms=0)
    listed = pa.array(
        [path.name for path in (corpus / "dat-deletion_vectors").glob("deletion_vector_*.bin")]
    )
    assert problem is None and len(listed) and references.in_use.covers(listed).any()
