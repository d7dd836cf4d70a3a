"""The plugins that mark, select, divide and sample the tests of this project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite import choice, durations, play, resources
from tests.support.suite.durations import Recorded

MODULE = """\
import subprocess
import sys

import pytest


def test_quiet():
    pass


def test_unmarked():
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.process
def test_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""

HANGING = """\
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.suite import hangs

hangs.GRACE_SECONDS = 1.0


@pytest.mark.timeout(1)
def test_hanging():
    with ThreadPoolExecutor() as pool:
        pool.submit(threading.Event().wait).result()


def test_after():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with the plugins and three tests, one of which lacks its mark."""
    (tmp_path / "tests" / "spark").mkdir(parents=True)
    (tmp_path / "tests" / "test_marks.py").write_text(MODULE)
    (tmp_path / "tests" / "spark" / "test_session.py").write_text("import no_such_module\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = tests\npythonpath = {Path(resources.__file__).parents[3]}\n"
        "timeout = 100\n"
        "addopts = --strict-markers\n"
    )
    plugins = [f"tests.support.suite.{name}" for name in ("durations", "resources", "choice")]
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = {plugins}\n")
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout


@pytest.mark.process
def test_a_quick_test_that_starts_a_process_fails(project: Path) -> None:
    told = run(project, "--choose=quick")
    assert "ERROR tests/test_marks.py::test_unmarked" in told
    assert "the test is not marked 'process', and caused subprocess.Popen" in told
    assert "2 passed, 1 deselected, 1 error" in told


@pytest.mark.process
@pytest.mark.parametrize("processes", [0, 1])
def test_a_quick_run_skips_marked_tests_and_reports_that(project: Path, processes: int) -> None:
    told = run(
        project, "--choose=quick", f"-n{processes}", "--deselect=tests/test_marks.py::test_unmarked"
    )
    assert "1 passed" in told and "test_marked" not in told
    # The folder is not imported, or the run would fail.
    assert "error" not in told.lower()
    assert f"1 process: {resources.RESOURCES['process']}" in told


@pytest.mark.process
def test_a_test_that_outlives_its_timeout_ends_its_process_and_not_the_run(project: Path) -> None:
    (project / "tests" / "test_hang.py").write_text(HANGING)
    told = run(project, "-n1", "-p", "tests.support.suite.hangs", "tests/test_hang.py")
    assert "FAILED tests/test_hang.py::test_hanging" in told
    assert "PASSED tests/test_hang.py::test_after" in told
    assert "in test_hanging" in told


@pytest.mark.parametrize("folder", resources.FOLDERS)
def test_every_folder_that_carries_a_mark_exists(folder: str) -> None:
    assert Path(__file__).parents[2].joinpath(folder).is_dir()


def test_the_longest_group_comes_first() -> None:
    recorded = {
        "tests/spark/test_a.py": Recorded(seconds=3, tests=1),
        "tests/spark/test_b.py": Recorded(seconds=4, tests=1),
        "tests/cli/test_c.py": Recorded(seconds=6, tests=1),
    }
    nodeids = ["tests/cli/test_new.py::test", "tests/cli/test_c.py::test", *recorded]
    assert durations.longest_first(nodeids, recorded) == [
        "tests/spark",
        "tests/cli/test_c.py",
        "tests/cli/test_new.py",
    ]


def test_a_sample_has_some_tests_of_each_function_and_of_every_module() -> None:
    recorded = {
        "tests/test_mixed.py": Recorded(
            seconds=25, tests=31, functions={"test_many": (4.0, 8), "Test::test_long": (21.0, 3)}
        ),
        "tests/test_slow.py": Recorded(
            seconds=14, tests=2, functions={"test_slowest": (9.0, 1), "test_slow": (5.0, 1)}
        ),
    }
    many = [f"tests/test_mixed.py::test_many[{number}]" for number in range(8)]
    short = [f"tests/test_mixed.py::test_short[a::{number}]" for number in range(20)]
    long = [f"tests/test_mixed.py::Test::test_long[{number}]" for number in range(3)]
    slow = ["tests/test_slow.py::test_slowest", "tests/test_slow.py::test_slow"]
    new = ["tests/test_new.py::test"]
    huge = ["tests/test_huge.py::test_huge"]
    recorded["tests/test_huge.py"] = Recorded(
        seconds=31, tests=1, functions={"test_huge": (31.0, 1)}
    )
    nodeids = [*many, *short, *long, *slow, *huge, *new]
    assert choice.sample(nodeids, recorded, 2.0) == {*many[::2], *short, *new}
    assert choice.sample_of_every_module(nodeids, recorded) == {*many[::8], *short, *new, slow[1]}


@pytest.mark.process
def test_the_sample_and_the_rest_are_the_whole_suite(project: Path) -> None:
    (project / "tests" / "spark" / "test_session.py").unlink()
    sample, rest = (run(project, f"--choose={part}") for part in ("sample", "rest"))
    assert "3 passed" in sample and "3 deselected" in rest


def test_a_choice_of_cases_is_spread_and_keeps_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "PLAY", "some")
    assert play.some(range(100), 4) == [0, 33, 66, 99]
    assert play.some(range(3), 4) == [0, 1, 2]
    assert play.examples(100) == 40
    monkeypatch.setattr(play, "PLAY", "all")
    assert play.some(range(100), 4) == list(range(100))
    assert play.examples(100) == 500
