"""The distribution as users get it: built, installed alone, run outside of the checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"delta_maintenance", "delta_maintenance_airflow", "delta_maintenance_dagster"}


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this checkout."""
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution and from nothing else."""
    folder = tmp_path_factory.mktemp("unpacked")
    # Not tarfile: its safe filter is newer than Debian's Python 3.11.
    run(["tar", "-xzf", sdist], cwd=folder)
    (source,) = folder.iterdir()
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with only the wheel and its core dependencies.

    The dependencies are links to those of the running environment. pip installs the wheel without
    an index, which succeeds only if the wheel's requirements are met.
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    target = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in core_dependencies(wheel):
        for entry in top_level(metadata.distribution(name)):
            (target / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    return python


def test_sdist_carries_what_a_packager_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    # The tests need what the repository contains, and nothing that was made in a checkout.
    tracked = run(["git", "ls-files"], cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    assert names - {"PKG-INFO"} == set(tracked) or not tracked


def test_wheel_contains_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    expected = {
        str(file.relative_to(root))
        for root in (ROOT / "plugin", ROOT / "operators")
        for file in root.rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == expected


def test_wheel_contains_the_files_of_the_health_page(wheel: Path) -> None:
    page = ROOT / "operators" / "delta_maintenance_airflow" / "health_page"
    expected = {
        str(file.relative_to(ROOT / "operators"))
        for folder in ("templates", "static")
        for file in (page / folder).rglob("*.*")
    }
    assert len(expected) > 10
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_command_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    help_text = run([installed.parent / "delta-maintenance", "--help"], cwd=tmp_path)
    assert "checkpoint" in help_text
    assert "inspect" in help_text


def test_version_is_the_wheels(installed: Path, wheel: Path, tmp_path: Path) -> None:
    code = "import delta_maintenance as d; print(d.__version__)"
    version = run([installed, "-I", "-c", code], cwd=tmp_path).strip()
    assert wheel.name.startswith(f"delta_maintenance-{version}-")


def test_folders_of_the_repository_are_no_packages(installed: Path, tmp_path: Path) -> None:
    code = """
from importlib.util import find_spec
found = [name for name in ("plugin", "operators", "dags", "tests", "tools") if find_spec(name)]
raise SystemExit(f"importable: {found}" if found else 0)
"""
    run([installed, "-I", "-c", code], cwd=tmp_path)


def test_library_needs_no_extra(installed: Path, tmp_path: Path) -> None:
    code = """
import sys
import delta_maintenance
from delta_maintenance import open_table
from delta_maintenance.operations import checkpoint
extras = {"airflow", "pyspark", "s3fs", "deltalake", "pandas"} & set(sys.modules)
raise SystemExit(f"imported: {extras}" if extras else 0)
"""
    run([installed, "-I", "-c", code], cwd=tmp_path)


def test_airflow_finds_the_provider_without_our_importing_airflow(
    installed: Path, tmp_path: Path
) -> None:
    code = """
import sys
from importlib.metadata import entry_points
(entry,) = entry_points(group="apache_airflow_provider")
info = entry.load()()
heavy = {"airflow", "pyarrow", "pyspark"} & set(sys.modules)
print(info["package-name"], sorted(heavy))
"""
    assert run([installed, "-I", "-c", code], cwd=tmp_path) == "delta-maintenance []\n"


def test_wheel_is_importable_as_a_zip(wheel: Path, installed: Path, tmp_path: Path) -> None:
    """As Spark ships it to executors: on the path, not unpacked."""
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import delta_maintenance.cli.main
from delta_maintenance.operations import checkpoint
assert {str(wheel)!r} in delta_maintenance.__file__, delta_maintenance.__file__
"""
    run([installed, "-I", "-c", code], cwd=tmp_path)


@pytest.mark.parametrize("page", ["command-line", "airflow"])
def test_the_commands_of_a_tutorial_run_in_an_empty_folder(
    installed: Path, tmp_path: Path, page: str
) -> None:
    """From the wheel alone; the table is written by deltalake, as the tutorial says."""
    first, text = (
        (ROOT / "docs" / "start" / f"{name}.md").read_text() for name in ("command-line", page)
    )
    (program,) = re.findall(r"^```python\n(.*?)^```", first, re.DOTALL | re.MULTILINE)
    run([sys.executable, "-c", program], cwd=tmp_path)
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = [line for line in shell.splitlines() if line.startswith("delta-maintenance ")]
    assert lines
    if page == "airflow":
        assert "delta-maintenance init airflow lake" in lines
        lines.append("delta-maintenance run policy.yaml")
    else:
        (policy,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        (tmp_path / "policy.yaml").write_text(policy)
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        told = run([installed.parent / "delta-maintenance", *words], cwd=tmp_path)
    assert "events" in told
    if page == "command-line":
        assert list((tmp_path / "lake/events/_delta_log").glob("*.checkpoint.parquet"))


@pytest.fixture
def dagster_project(wheel: Path, tmp_path: Path) -> Path:
    """Returns the commands of an environment with the wheel and Dagster.

    All but the wheel is that of the running environment, whose editable installation does not count
    there.
    """
    pytest.importorskip("dagster_dg_cli", reason="NO dg: install the development dependencies")
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    purelib = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (purelib / "others.pth").write_text(sysconfig.get_path("purelib"))
    python, commands = folder / "bin" / "python", folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--ignore-installed", wheel], check=True)
    for script in metadata.entry_points(group="console_scripts"):
        if script.name in ("create-dagster", "dagster", "dg"):
            # Dagster's steps are processes that import the script again.
            code = (
                f"from {script.module} import {script.attr} as main\n"
                'if __name__ == "__main__":\n    main()'
            )
            (commands / script.name).write_text(f"#!{python}\n{code}\n")
            (commands / script.name).chmod(0o755)
    (commands / "pip").write_text(
        "#!/bin/sh\n"
        f'exec {sys.executable} -m pip --python {python} "$@" '
        "--quiet --no-index --no-deps --no-build-isolation\n"
    )
    (commands / "pip").chmod(0o755)
    return commands


@pytest.mark.dagster
def test_the_dagster_tutorial_maintains_a_table_in_an_empty_folder(
    dagster_project: Path, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "start" / "dagster.md").read_text()
    blocks = re.findall(r"^```(sh|python|yaml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (file,) = re.findall(r"Replace the generated file `(\S+)` by", text)
    script = ["set -eu"]
    for language, block in blocks:
        if language == "python":
            script.append(f"python - <<'END'\n{block}END")
        elif language == "yaml":
            script.append(f"test -f {file}\ncat > {file} <<'END'\n{block}END")
        else:
            # These are there already.
            installed = ("pip install 'delta-maintenance", "pip install deltalake")
            lines = [line for line in block.splitlines() if not line.startswith(installed)]
            script += ["set -x", *lines, "{ set +x; } 2>/dev/null"]
    environment = {
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{dagster_project}:{os.environ['PATH']}",
    }
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=work, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All definitions loaded successfully" in done.stdout
    assert "BetaWarning" not in done.stderr and "PreviewWarning" not in done.stderr
    project = work / "lakehouse"
    assert list((project / "lake/events/_delta_log").glob("*.checkpoint.parquet"))
    # `inspect` reports it.
    assert re.search(r"commits since:? +0\b", done.stdout), done.stdout
    # The run is kept.
    assert (project / "dagster-home/history/runs.db").is_file()


def build(source: Path, kind: str, target: Path) -> Path:
    """Build one kind of distribution with the hatchling of this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind]
    run([*command, "--directory", target], cwd=source)
    (built,) = target.iterdir()
    return built


def run(command: list[str | Path], *, cwd: Path) -> str:
    """Returns the output of `command`; its stderr is the message if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def core_dependencies(wheel: Path) -> set[str]:
    """The distributions that the wheel brings without any extra, theirs included."""
    name = "-".join(wheel.name.split("-")[:2])
    own = metadata.PathDistribution(zipfile.Path(wheel, f"{name}.dist-info/"))
    found: set[str] = set()
    waiting: list[metadata.Distribution] = [own]
    while waiting:
        for line in waiting.pop().requires or ():
            requirement = Requirement(line)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name.lower() not in found:
                found.add(requirement.name.lower())
                waiting.append(metadata.distribution(requirement.name))
    return found


def top_level(distribution: metadata.Distribution) -> Iterator[Path]:
    """The files and folders that a distribution puts into site-packages."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for name in sorted(names):
        yield Path(str(distribution.locate_file(name)))
