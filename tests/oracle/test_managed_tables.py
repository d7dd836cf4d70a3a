"""A table that Delta Spark wrote, with commits that only its catalog names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import DeltaTable, open_table
from delta_maintenance.cli.main import main
from delta_maintenance.clock import now
from delta_maintenance.errors import UnsupportedFeatureError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.health import measure
from delta_maintenance.operations.optimize import OptimizeOptions
from tests.support.oracle.oracle_tables import Bench
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable, serve_unity

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

_PUBLISHED = 3
_LATEST = 6


@pytest.fixture
def managed(bench: Bench, tmp_path: Path) -> Iterator[tuple[UnityServer, Path, list[Any]]]:
    """A catalog, the table, and the live files of each version as Delta Spark sees them."""
    root = tmp_path / "t"
    bench.spark.sql(
        f"CREATE TABLE delta.`{root}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
    )
    for number in range(1, _LATEST):
        bench.spark.sql(f"INSERT INTO delta.`{root}` VALUES ({number})")
    bench.spark.sql(f"DELETE FROM delta.`{root}` WHERE id = 2")
    live = [
        sorted(
            action["add"]["path"]
            for action in bench.spark.actions(bench.spark.snapshot(root, version))
            if action.get("add")
        )
        for version in range(_LATEST + 1)
    ]
    with serve_unity() as unity:
        table = unity.add("main.s.t", UnityTable(location=str(root), managed=True))
        table.latest = _LATEST
        table.commits = [_stage(root, version) for version in range(_PUBLISHED + 1, _LATEST + 1)]
        _make_managed(root)
        yield unity, root, live


def _stage(root: Path, version: int) -> dict[str, Any]:
    """Takes back the publication of a commit."""
    log = root / "_delta_log"
    name = f"{version:020}.0a1b2c3d-0000-4000-8000-{version:012}.json"
    staged = log / "_staged_commits" / name
    staged.parent.mkdir(exist_ok=True)
    (log / f"{version:020}.json").rename(staged)
    (log / f"{version:020}.crc").unlink(missing_ok=True)
    info = json.loads(staged.read_text().splitlines()[0])["commitInfo"]
    return {
        "version": version,
        "timestamp": info["inCommitTimestamp"],
        "file-name": name,
        "file-size": staged.stat().st_size,
        "file-modification-timestamp": int(staged.stat().st_mtime * 1000),
    }


def _make_managed(root: Path) -> None:
    """Adds the features to the first protocol, which no SQL of open-source Delta Spark can do."""
    first = root / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            both = ["catalogManaged", "vacuumProtocolCheck"]
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": both,
                "writerFeatures": [*line["protocol"].get("writerFeatures", ()), *both],
            }
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in (root / "_delta_log").glob("*.crc"):
        path.unlink()


@pytest.mark.conformance("CAT-01", "CAT-02", "CAT-03", "CAT-04")
def test_every_ratified_version_is_what_delta_spark_wrote(
    managed: tuple[UnityServer, Path, list[Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unity, root, live = managed
    table = open_table("uc://main.s.t", unity.options)
    for version in range(_LATEST + 1):
        found = table.snapshot(version).live_files()["path"].to_pylist()
        assert sorted(found) == live[version]
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.warnings) == (_LATEST, ())
    assert [entry.version for entry in table.history()] == [*range(_LATEST, -1, -1)]
    assert measure(snapshot, now=now()).unpublished_commits == _LATEST - _PUBLISHED
    with pytest.raises(UnsupportedFeatureError, match="ask its owner for DATA_REORGANIZATION"):
        optimize.plan(snapshot, OptimizeOptions())
    by_path = open_table(str(root)).snapshot()
    assert by_path.version == _PUBLISHED
    assert "open the table by its name" in by_path.warnings[0]

    monkeypatch.setenv("UNITY_CATALOG_URI", unity.url)
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
    for words in (("inspect",), ("history",), ("files",), ("health",), ("layout",), ("fsck",)):
        assert main([*words, "uc://main.s.t"]) == 0, words
    text = "".join(capsys.readouterr())
    assert "publication backlog" in text
    files = {path for path in root.rglob("*") if path.is_file()}
    for words in (("vacuum",), ("optimize",), ("clean-log",), ("clean-staged",)):
        assert main([*words, "uc://main.s.t"]) == 3, words
        [line] = capsys.readouterr().err.splitlines()
        assert "the catalog does not permit" in line
    assert {path for path in root.rglob("*") if path.is_file()} == files


@pytest.mark.conformance("CAT-05", "CKPT-01", "COMP-11")
def test_delta_spark_reads_what_was_written_for_published_versions(
    managed: tuple[UnityServer, Path, list[Any]], bench: Bench
) -> None:
    """Delta Spark opens no such table by its address, so a copy loses the two features."""
    unity, root, live = managed
    table = DeltaTable("uc://main.s.t", unity.options)
    assert table.compact_log(commits_per_file=2, last_version=_PUBLISHED).status == "written"
    assert table.checkpoint(version=_PUBLISHED).status == "written"
    assert table.checksum().status == "written"
    log = root / "_delta_log"
    assert {path.name for path in log.glob("*.crc")} == {
        f"{version:020}.crc" for version in (_PUBLISHED, _LATEST)
    }
    copied = shutil.copytree(root, root.with_name("copied"))
    for version in range(_PUBLISHED):
        # Only the checkpoint is left of them.
        (copied / "_delta_log" / f"{version:020}.json").unlink()
    for checksum in (copied / "_delta_log").glob("*.crc"):
        checksum.unlink()
    checkpoint = copied / "_delta_log" / f"{_PUBLISHED:020}.checkpoint.parquet"
    written = pq.read_table(checkpoint)
    protocols = [
        row and {**row, "readerFeatures": [], "writerFeatures": ["inCommitTimestamp"]}
        for row in written["protocol"].to_pylist()
    ]
    index = written.schema.get_field_index("protocol")
    changed = pa.array(protocols, written.schema.field(index).type)
    pq.write_table(written.set_column(index, "protocol", changed), checkpoint)
    assert bench.spark.version(copied) == _PUBLISHED
    state = bench.spark.state(copied)
    added = sorted(action["add"]["path"] for action in state if action.get("add"))
    assert added == live[_PUBLISHED]
