"""tools/make_venv.py: what a later run does to an environment that is up to date."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def make_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for an environment in another folder whose stamp is that of the checkout."""
    monkeypatch.syspath_prepend(TOOLS)
    import make_venv

    monkeypatch.setattr(make_venv, "VENV", tmp_path)
    monkeypatch.setattr(make_venv, "install_version", lambda venv: None)
    monkeypatch.setattr(sys, "argv", ["make_venv.py"])
    make_venv.stamp_of(tmp_path).write_text(make_venv.fingerprint(tmp_path, "dev"))
    return make_venv


def installed(environment: Path, *requirements: str) -> None:
    for requirement in requirements:
        name, version = requirement.replace("-", "_").replace(">=", "==").split("==")
        packages = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)


def test_readers_that_could_not_be_installed_are_tried_again(
    make_venv: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tries: list[tuple[str, ...]] = []

    def install(pip: list[str], *packages: str) -> None:
        tries.append(packages)
        if len(tries) < 3:
            raise subprocess.CalledProcessError(1, pip)
        installed(tmp_path, *packages)

    monkeypatch.setattr(make_venv, "install", install)
    wanted = tuple(make_venv.readers())
    installed(tmp_path, "duckdb==1.0", "polars==1.0")
    for number in (1, 2, 3, 4):
        make_venv.main()
        assert tries == [wanted] * min(number, 3)
        assert ("NO OTHER READERS" in capsys.readouterr().err) is (number < 3)


def test_quick_builds_the_small_environment_only_where_the_large_one_is_not_current(
    make_venv: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    extras: list[str] = []

    def build(venv: Path, extra: str) -> None:
        extras.append(extra)
        make_venv.stamp_of(venv).write_text(make_venv.fingerprint(venv, extra))

    monkeypatch.setattr(make_venv, "build", build)
    monkeypatch.setattr(make_venv, "install_readers", lambda: None)
    monkeypatch.setattr(sys, "argv", ["make_venv.py", "--quick"])
    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setattr(make_venv, "QUICK_VENV", small)
    make_venv.main()
    assert (extras, capsys.readouterr().out) == ([], f"{tmp_path.name}\n")
    make_venv.stamp_of(tmp_path).write_text("of another version")
    for _ in range(2):
        make_venv.main()
        assert (extras, capsys.readouterr().out) == (["quick"], "small\n")


def test_the_pinned_versions_can_be_installed_on_debian_12() -> None:
    """Its Python is older than the one that resolved them."""
    pinned = set((TOOLS.parent / "constraints.txt").read_text().splitlines())
    refused = {
        package.name: package.metadata["Requires-Python"]
        for package in metadata.distributions()
        if f"{canonicalize_name(package.name)}=={package.version}" in pinned
        and "Requires-Python" in package.metadata
        and "3.11.2" not in SpecifierSet(package.metadata["Requires-Python"])
    }
    assert refused == {}
