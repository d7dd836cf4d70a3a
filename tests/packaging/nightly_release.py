"""A release, played by the steps of its workflow: from a tag to a local index, and to a user.

    make nightly NIGHTLY=release

What only GitHub does is left out: the tests before it, the approval, attestations, and the release
page. Needs a registry for the packages of the steps and of the server.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = "9.9.9"
SERVER, NAME = "https://github.com", "someone/delta-maintenance"
REPOSITORY = f"{SERVER}/{NAME}"

pytestmark = pytest.mark.process


@dataclass(frozen=True, kw_only=True)
class Release:
    """What the job `build` has left."""

    checkout: Path
    python: Path
    """The Python of the job's environment, which has twine."""

    @property
    def distributions(self) -> list[Path]:
        return sorted((self.checkout / "dist").iterdir())


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A tag on a commit with a version and a dated change log, and the job `build` on it."""
    folder = tmp_path_factory.mktemp("release")
    checkout = folder / "checkout"
    run("git", "clone", "--quiet", ROOT, checkout)
    for package in ("plugin/delta_maintenance", "operators/delta_maintenance_airflow"):
        replace(
            checkout / package / "__init__.py", '__version__ = ".*"', f'__version__ = "{VERSION}"'
        )
    replace(checkout / "CHANGELOG.md", r"^## \S+ \(unreleased\)", f"## {VERSION} (2026-11-29)")
    author = ("-c", "user.name=someone", "-c", "user.email=someone@localhost")
    run(
        "git",
        *author,
        "commit",
        "--quiet",
        "--all",
        "--message",
        f"Release {VERSION}",
        cwd=checkout,
    )
    run("git", *author, "tag", "--annotate", "--message", VERSION, f"v{VERSION}", cwd=checkout)
    venv.create(folder / "venv", with_pip=True)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "GITHUB_REF_NAME": f"v{VERSION}",
        "GITHUB_SERVER_URL": SERVER,
        "GITHUB_REPOSITORY": NAME,
    }
    environment.pop("PYTHONPATH", None)
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    for step in workflow["jobs"]["build"]["steps"]:
        if "run" in step:
            run("bash", "-e", "-c", step["run"], cwd=checkout, env=environment)
    return Release(checkout=checkout, python=folder / "venv" / "bin" / "python")


@pytest.fixture(scope="module")
def index(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an index with the distributions, as twine has uploaded them."""
    folder = tmp_path_factory.mktemp("packages")
    run(release.python, "-m", "pip", "install", "--quiet", "pypiserver")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    server = subprocess.Popen(
        [release.python, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", str(port)]
        + ["-P", ".", "-a", ".", folder]
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        wait_for(address)
        upload = ["upload", "--repository-url", address, "--username", "x", "--password", "x"]
        run(release.python, "-m", "twine", *upload, "--non-interactive", *release.distributions)
        yield f"{address}simple/"
    finally:
        server.terminate()
        server.wait()


def test_the_notes_are_the_section_of_the_change_log(release: Release) -> None:
    notes = (release.checkout / "release-notes.md").read_text()
    assert notes.strip()
    assert not re.search("^## ", notes, re.MULTILINE)
    assert notes in (release.checkout / "CHANGELOG.md").read_text()


def test_every_link_of_the_page_on_the_registry_leads_to_the_tag(release: Release) -> None:
    wheel = next(file for file in release.distributions if file.suffix == ".whl")
    metadata = run("unzip", "-p", wheel, "*/METADATA")
    assert f"Project-URL: Source, {REPOSITORY}" in metadata
    links = re.findall(r"\]\(([^)#]+)", metadata)
    tree = f"{REPOSITORY}/blob/v{VERSION}/"
    assert {link for link in links if not link.startswith(("https:", "http:"))} == set()
    files = {link.removeprefix(tree).partition("#")[0] for link in links if link.startswith(tree)}
    files = {name.removesuffix("?raw=true") for name in files}
    assert files
    assert {name for name in files if not (release.checkout / name).exists()} == set()


def test_the_tests_of_the_source_distribution_have_what_they_import(
    release: Release, tmp_path: Path
) -> None:
    source = next(file for file in release.distributions if file.suffix == ".gz")
    run("tar", "-xzf", source, "-C", tmp_path)
    (unpacked,) = tmp_path.iterdir()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{unpacked / 'plugin'}:{unpacked / 'operators'}:{unpacked}",
    }
    collected = run(
        *(sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"),
        *("--choose", "quick"),
        cwd=unpacked,
        env=environment,
    )
    assert "error" not in collected.lower().split()


def test_the_readme_works_with_what_was_published(
    release: Release, index: str, tmp_path: Path
) -> None:
    """The commands of *Try it*, as the page on the registry shows them, without a checkout."""
    wheel = next(file for file in release.distributions if file.suffix == ".whl")
    page = run("unzip", "-p", wheel, "*/METADATA").partition("\n## Try it\n")[2]
    match = re.search(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert match is not None
    venv.create(tmp_path / "venv", with_pip=True)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}",
        "PIP_EXTRA_INDEX_URL": index,
    }
    environment.pop("PYTHONPATH", None)
    commands = f"set -ex\n{match[1]}delta-maintenance --version\n"
    output = run("bash", "-c", commands, cwd=tmp_path, env=environment)
    assert VERSION in output.splitlines()[-1]
    assert "40 data files became 1" in output


def replace(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
    assert count == 1, (file, pattern)
    file.write_text(changed)


def wait_for(address: str) -> None:
    for _ in range(300):
        try:
            with urlopen(address):
                return
        except URLError:
            time.sleep(0.1)
    pytest.fail(f"no server at {address}")


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Returns the output of a command, which must succeed."""
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout
