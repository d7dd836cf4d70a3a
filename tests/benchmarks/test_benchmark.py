"""The benchmark measures what it says it does, on a log small enough to check."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from delta_maintenance import DeltaTable as DeltaMaintenanceTable
from delta_maintenance.table.data.parquet import footer_reader, guarded_reading
from delta_maintenance.table.read import actions_file

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def _generate(table: Path, **shape: int) -> list[Path]:
    options = [f"--{key.replace('_', '-')}={value}" for key, value in shape.items()]
    argv = [sys.executable, "-m", "benchmarks.generate", str(table), *options]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    return sorted((table / "_delta_log").iterdir())


def _actions(commits: list[Path], kind: str) -> list[tuple[int, dict[str, object]]]:
    lines = [
        (version, json.loads(line))
        for version, commit in enumerate(commits)
        for line in commit.read_text().splitlines()
    ]
    return [(version, action[kind]) for version, action in lines if kind in action]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.measure")


def test_the_log_has_the_requested_shape(tmp_path: Path) -> None:
    commits = _generate(tmp_path, commits=7, adds=100, removes=30)

    adds, removes = _actions(commits, "add"), _actions(commits, "remove")
    assert [commit.name for commit in commits] == [f"{version:020}.json" for version in range(7)]
    assert set(Counter(version for version, _ in adds).values()) == {14, 15}
    assert len({add["path"] for _, add in adds}) == 100
    added_in = {add["path"]: version for version, add in adds}
    assert len({remove["path"] for _, remove in removes}) == 30
    assert all(version > added_in[remove["path"]] for version, remove in removes)


def test_every_file_has_statistics_and_every_tombstone_counts(tmp_path: Path) -> None:
    commits = _generate(tmp_path, commits=5, adds=50, removes=10)

    for _, add in _actions(commits, "add"):
        stats = json.loads(str(add["stats"]))
        assert stats["numRecords"] > 0
        columns = set(stats["minValues"])
        assert len(columns) == 6
        assert columns == set(stats["maxValues"]) == set(stats["nullCount"])
        assert all(stats["minValues"][name] <= stats["maxValues"][name] for name in columns)
    week_ago_ms = (time.time() - 7 * 86_400) * 1000
    for _, remove in _actions(commits, "remove"):
        assert int(str(remove["deletionTimestamp"])) > week_ago_ms


def test_a_tail_contains_all_removes(tmp_path: Path) -> None:
    commits = _generate(tmp_path, commits=4, adds=400, removes=20, tail_commits=3, tail_adds=9)

    assert Counter(version for version, _ in _actions(commits, "add")) == {
        **dict.fromkeys(range(4), 100),
        **dict.fromkeys(range(4, 7), 3),
    }
    removed_in = {version for version, _ in _actions(commits, "remove")}
    assert removed_in <= {4, 5, 6}


def test_one_seed_gives_one_set_of_files(tmp_path: Path) -> None:
    names = [
        [str(add["path"]).rpartition("/")[2] for _, add in _actions(commits, "add")]
        for commits in (
            _generate(tmp_path / "a", commits=2, adds=9, removes=1, seed=1),
            _generate(tmp_path / "b", commits=2, adds=9, removes=1, seed=1),
            _generate(tmp_path / "c", commits=2, adds=9, removes=1, seed=2),
        )
    ]
    assert names[0] == names[1] != names[2]


def test_another_engine_finds_the_files_that_were_not_removed(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    _generate(tmp_path, commits=6, adds=60, removes=25)

    assert len(deltalake.DeltaTable(str(tmp_path)).file_uris()) == 35


def test_a_benchmark_vacuum_has_the_requested_number_of_files_to_delete(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = [f"--{name}" for name in ("files=60", "dead=17", "partitions=7", "commits=3")]
    argv = [sys.executable, "-m", "benchmarks.dead_files", str(tmp_path / "t"), *options]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)

    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert len(table.file_uris()) == 43
    assert len(table.vacuum(full=True, dry_run=True)) == 17
    assert len(list((tmp_path / "t").glob("day=*/*.parquet"))) == 60


def test_memory_is_that_of_the_largest_process_of_the_tree() -> None:
    grandchild = "block = b'x' * 200_000_000"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    # From a process of its own: a child's peak starts at its parent's size, and pytest is large.
    script = (
        "import sys; from benchmarks.measure import run_process; "
        f"peaks = [run_process([sys.executable, '-c', c]).peak_mb for c in ('pass', {child!r})]; "
        "print(*peaks)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    small, large = map(float, done.stdout.split())

    assert small < 200 < large


def test_a_failed_process_is_reported_with_its_last_line(measure: ModuleType) -> None:
    with pytest.raises(measure.ProcessFailed, match="status 3: no such table$"):
        measure.run_process(
            [sys.executable, "-c", "import sys; print('no such table', file=sys.stderr); exit(3)"]
        )


def test_pairs_alternate(measure: ModuleType) -> None:
    order: list[str] = []

    def side(name: str) -> object:
        order.append(name)
        return measure.Run(seconds=1.0, peak_mb=1.0)

    measure.run_pairs(lambda: side("A"), lambda: side("B"), runs=3, label="")

    assert order == ["A", "B"] * 3


def test_a_generated_checkpoint_is_not_contradicted_by_its_log(tmp_path: Path) -> None:
    shape = ("--files", "200", "--commits", "20", "--removes", "4")
    argv = [sys.executable, "-m", "benchmarks.generate_state", str(tmp_path / "table"), *shape]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    result = DeltaMaintenanceTable(str(tmp_path / "table")).checkpoint(kind="v2-json")
    assert result.num_files == 200 + 20 - 4


def test_each_figure_is_explained_and_recorded_ones_can_be_read_again(tmp_path: Path) -> None:
    from benchmarks import results, run
    from benchmarks.outcome import Outcome, Row

    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)) == set(run.FIGURES)
    recorded = results.RecordedFigure(
        title="A figure",
        conditions=results.Conditions(day="2026-11-29", machine="2 cores", load=0.5, size=""),
        outcome=Outcome(rows=[Row(name="wall time", unit="s", ours=[1.0], peer=[2.0])], notes=[]),
    )
    (tmp_path / "open.json").write_text(recorded.to_json())
    assert results.read(tmp_path) == {"open": recorded}
    assert set(results.read()) <= set(run.FIGURES)


def test_an_unknown_figure_is_refused() -> None:
    argv = [sys.executable, "-m", "benchmarks.run", "speed"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no figure speed" in done.stderr


@pytest.mark.parametrize("partitions", [1, 3])
def test_generated_data_files_are_a_table(tmp_path: Path, partitions: int) -> None:
    argv = [sys.executable, "-m", "benchmarks.data_files", str(tmp_path / "t")]
    shape = ["--files=20", "--rows-per-file=50", f"--partitions={partitions}"]
    subprocess.run([*argv, *shape], cwd=ROOT, check=True, capture_output=True)

    commits = sorted((tmp_path / "t" / "_delta_log").iterdir())
    adds = [add for _, add in _actions(commits, "add")]
    assert len(adds) == 20
    assert len({str(add["partitionValues"]) for add in adds}) == partitions
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table()
    # Sixteen files differ, and the others are links to them.
    assert (rows.num_rows, len(rows["id"].unique())) == (20 * 50, 16 * 50)
    assert {path.name for path in (tmp_path / "t").rglob("*.parquet")} == {
        str(add["path"]).rpartition("/")[2] for add in adds
    }


def test_generated_data_files_may_have_deleted_rows(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.data_files", str(tmp_path / "t")]
    shape = ["--files=3", "--rows-per-file=200", "--different=2", "--deleted-percent=10"]
    subprocess.run([*argv, *shape], cwd=ROOT, check=True, capture_output=True)

    commits = sorted((tmp_path / "t" / "_delta_log").iterdir())
    marked = [add["deletionVector"]["cardinality"] for _, add in _actions(commits, "add")]
    assert len(marked) == 3 and all(0 < each < 60 for each in marked)


def test_the_peer_of_the_limits_reads_without_them(
    tmp_path: Path, measure: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = importlib.import_module("benchmarks.subjects")
    _generate(tmp_path, commits=3, adds=30, removes=5)
    DeltaTable(tmp_path).create_checkpoint()
    looks: list[str] = []

    def look(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: [looks.append(name), call(*args, **options)][1]

    for module, name in (
        (footer_reader, "require_readable_columns"),
        (guarded_reading, "read_pages"),
    ):
        monkeypatch.setattr(module, name, look(name, getattr(module, name)))
    for name in ("open_footer", "guarded_batches"):
        # Put back after the test.
        monkeypatch.setattr(actions_file, name, getattr(actions_file, name))

    limited = subjects.files_by_limits("limited", str(tmp_path))
    assert {*looks} == {"require_readable_columns", "read_pages"}
    looks.clear()
    assert subjects.files_by_limits("unlimited", str(tmp_path)) == limited
    assert not looks


def test_a_counted_checkpoint_does_the_work_of_a_plain_one(
    tmp_path: Path, measure: ModuleType
) -> None:
    subjects = importlib.import_module("benchmarks.subjects")
    reports = {}
    for kind in ("plain", "counted", "recorded"):
        _generate(tmp_path / kind, commits=3, adds=30, removes=5)
        reports[kind] = subjects.checkpoint_counted(
            kind, str(tmp_path / kind), str(tmp_path / "ledger")
        )
        assert [*(tmp_path / kind / "_delta_log").glob("*.checkpoint.parquet")]
        assert (tmp_path / "ledger").exists() is (kind == "recorded")
    assert {(each["version"], each["files"]) for each in reports.values()} == {(2, 25)}
    assert all(each["warnings"] == [] for each in reports.values())
    assert reports["plain"]["counted"] is None and reports["counted"]["counted"] > 0
