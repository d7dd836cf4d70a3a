"""The workflows of GitHub, as far as they can be checked without GitHub."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
FILES = sorted((GITHUB / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in FILES
}

# A tag can be moved to other code; a commit cannot.
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def jobs() -> Iterator[dict[str, Any]]:
    """The jobs with steps of their own."""
    for workflow in WORKFLOWS.values():
        yield from (job for job in workflow["jobs"].values() if "steps" in job)


def matrix_of(workflow: str) -> dict[str, Any]:
    job = next(iter(WORKFLOWS[workflow]["jobs"].values()))
    matrix: dict[str, Any] = job["strategy"]["matrix"]
    return matrix


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the parts of `make nightly`."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import nightly

    return set(nightly.PARTS)


@pytest.mark.parametrize(
    ("schema", "files", "key"),
    [
        ("vendor.github-workflows", FILES, "runs-on"),
        ("custom.github-workflows-require-timeout", FILES, "timeout-minutes"),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"], "package-ecosystem"),
    ],
)
def test_files_follow_their_schemas(
    schema: str, files: list[Path], key: str, tmp_path: Path
) -> None:
    def checked(*paths: Path) -> Result:
        return CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *map(str, paths)])

    found = checked(*files)
    assert found.exit_code == 0, found.output
    wrong = tmp_path / files[0].name
    wrong.write_text(files[0].read_text().replace(f"{key}:", "misspelled:"))
    assert checked(wrong).exit_code == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    used = [action for action in re.findall(r"uses: (.+)", path.read_text()) if action[0] != "."]
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_only_single_jobs_may_write() -> None:
    assert {name: workflow["permissions"] for name, workflow in WORKFLOWS.items()} == dict.fromkeys(
        WORKFLOWS, {"contents": "read"}
    )
    steps = [step for job in jobs() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    # The distributions are built where nothing may be published.
    release = WORKFLOWS["release"]["jobs"]
    assert "permissions" not in release["build"]
    assert (release["build"]["needs"], release["publish"]["needs"]) == ("tests", "build")
    assert (ROOT / release["tests"]["uses"]).is_file()
    assert release["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    assert not any("run" in step for step in release["publish"]["steps"])


def test_each_supported_python_is_tested(parts: set[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [
        line.rpartition(" :: ")[2]
        for line in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", line)
    ]
    entries = matrix_of("tests")["include"]
    assert [entry["python"] for entry in entries] == supported
    assert {f"python-{entry['python']}" for entry in entries[1:]} <= parts
    for entry in entries[1:]:
        assert entry["run"] == f"make nightly NIGHTLY=python-{entry['python']}"


def test_every_part_of_the_nightly_tests_is_run(parts: set[str]) -> None:
    listed = matrix_of("nightly")["part"]
    assert set(listed) == parts
    assert len(listed) == len(parts)


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(path.read_text() for path in FILES)
    for target in set(re.findall(r"run: make ([a-z-]+)", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(re.findall(r"run: (\.[\w/]+)", text)):
        assert (ROOT / command).is_file(), command
