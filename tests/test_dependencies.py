"""Packages that are too old are named when the library is imported."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from delta_maintenance.dependencies import OLDEST, numbers_of, require_versions

ROOT = Path(__file__).resolve().parents[1]


def packages(folder: Path, *names: str) -> str:
    for name in names:
        (folder / f"{name}.dist-info").mkdir(parents=True)
    return str(folder)


@pytest.mark.parametrize(
    ("found", "is_refused"),
    [
        ("17.0.0", True),
        ("20.99.9", True),
        ("21.0.0", False),
        ("21.0.0rc1", False),
        ("100.1", False),
        ("unknown", True),
    ],
)
def test_an_older_version_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, is_refused: bool
) -> None:
    monkeypatch.setattr(sys, "path", [packages(tmp_path, f"pyarrow-{found}", "numpy-2.3")])
    if not is_refused:
        require_versions({"pyarrow": "21", "numpy": "1.26", "absent": "3"})
        return
    with pytest.raises(ImportError) as raised:
        require_versions({"pyarrow": "21"})
    assert str(raised.value) == (
        f"delta-maintenance needs pyarrow 21 or newer, and this Python has {found}: "
        "pip install 'pyarrow>=21'"
    )


def test_the_first_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [packages(tmp_path / "a"), packages(tmp_path / "b", "pyarrow-1.0")]
    (tmp_path / "a" / "pyarrow-21.0.0-py3.11.egg-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), *folders])
    require_versions({"pyarrow": "21"})
    monkeypatch.setattr(sys, "path", folders[::-1])
    with pytest.raises(ImportError, match=r"has 1\.0"):
        require_versions({"pyarrow": "21"})


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "package", "version"),
    [
        ("delta_maintenance", "pydantic-1.10.14", "pydantic 2.11"),
        ("delta_maintenance_airflow", "apache_airflow-3.0.6", "apache-airflow 3.1"),
        ("delta_maintenance_dagster", "dagster-1.11.16", "dagster 1.12"),
    ],
)
def test_the_import_ends_with_the_line(
    tmp_path: Path, module: str, package: str, version: str
) -> None:
    before = f"import sys; sys.path.insert(0, {packages(tmp_path, package)!r}); import {module}"
    ended = subprocess.run([sys.executable, "-c", before], capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: delta-maintenance needs {version} or newer, and this")


def test_the_oldest_versions_are_those_of_the_project() -> None:
    pytest.importorskip("dagster", reason="NO DAGSTER: install the extra dagster")
    surfaces = map(import_module, ("delta_maintenance_airflow", "delta_maintenance_dagster"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["airflow"], *extras["dagster"]]
    floors = dict(pair for each in asked for pair in re.findall(r"^([\w-]+)>=([\d.]+)", each))
    stated = dict(OLDEST)
    for surface in surfaces:
        stated |= surface.OLDEST
    assert stated == {name: floors[name.replace("_", "-")] for name in stated}
    assert numbers_of("2024.6.1") == [2024, 6]
