"""The plugin for docs/conformance.md: its output, and the errors that it reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite import conformance

IDS = """\
[[area]]
name = "LOG"
title = "The log"
due = true
[area.ids]
LOG-01 = "Names"
LOG-02 = "Gaps"
LOG-03 = "Lines"
"""

MODULE = """\
import pytest

@pytest.mark.conformance("LOG-01", "LOG-02")
@pytest.mark.parametrize("digits", [1, 19])
def test_short_names(digits):
    raise AssertionError("collected, never run")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with the plugin, three ids and one test."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "conformance-ids.toml").write_text(IDS)
    (tmp_path / "docs" / "conformance-notes.toml").write_text(
        '[except]\nLOG-02 = "only at the end"\n[not-yet]\nLOG-03 = "no parser"\n'
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_names.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = tests\npythonpath = {Path(conformance.__file__).parents[3]}\n"
        "markers = conformance\n"
    )
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.suite.conformance"]\n')
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


@pytest.mark.process
def test_document_shows_every_id_with_state_reason_and_tests(project: Path) -> None:
    assert run(project, "--conformance=write").returncode == 0
    text = (project / "docs" / "conformance.md").read_text()
    assert "| LOG-01 | Names | covered | `test_names::test_short_names` |" in text
    assert "| LOG-02 | Gaps | covered except: only at the end | `test_names::" in text
    assert "| LOG-03 | Lines | not yet: no parser |  |" in text
    assert "| LOG: The log | 1 | 1 | 1 |" in text
    assert str(project) not in text
    assert run(project, "--conformance=check").returncode == 0


@pytest.mark.process
def test_selection_of_tests_changes_nothing_in_the_document(project: Path) -> None:
    run(project, "--conformance=write")
    assert run(project, "--conformance=check", "-k", "19").returncode == 0
    assert "name none" in run(project, "--conformance=check", "tests").stderr


@pytest.mark.process
def test_outdated_document_fails_the_check(project: Path) -> None:
    assert "out of date" in run(project, "--conformance=check").stderr


@pytest.mark.process
def test_unknown_id_fails_any_run(project: Path) -> None:
    file = project / "tests" / "test_names.py"
    file.write_text(MODULE.replace("LOG-02", "LOG-20"))
    assert "no such conformance ids: ['LOG-20']" in run(project).stderr
    file.write_text(MODULE.replace('"LOG-01", "LOG-02"', ""))
    assert "no such conformance ids: []" in run(project).stderr


@pytest.mark.process
def test_module_skipped_at_import_cannot_hide_its_tests(project: Path) -> None:
    (project / "tests" / "test_more.py").write_text('import pytest\npytest.importorskip("nope")\n')
    assert "tests/test_more.py" in run(project, "--conformance=write").stderr


@pytest.mark.parametrize(
    ("exceptions", "not_yet", "complaint"),
    [
        ({"LOG-99": "why"}, {}, "unknown ids: LOG-99"),
        ({"LOG-03": "why"}, {}, "without any test: LOG-03"),
        ({}, {"LOG-01": "why"}, "that tests carry: LOG-01"),
    ],
)
def test_note_that_the_tests_disprove_is_refused(
    exceptions: dict[str, str], not_yet: dict[str, str], complaint: str
) -> None:
    ids = {"LOG-01": "Names", "LOG-03": "Lines"}
    area = conformance.Area(name="LOG", title="The log", due=True, ids=ids)
    notes = conformance.Notes(exceptions=exceptions, not_yet=not_yet)
    with pytest.raises(conformance.Contradiction, match=complaint):
        conformance.render([area], notes, {"LOG-01": {"test"}})
