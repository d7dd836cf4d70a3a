"""From `pip install` to the first gain, as the documents say it, in minutes of this machine.

Each test has an empty environment and an empty folder. Packages come from the index of the machine,
the distribution from a wheel of this checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.newcomer import ROOT, Newcomer
from tests.support.servers.browser import open_browser
from tests.support.servers.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    subprocess.run(pip, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture
def newcomer(wheel: Path, tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path, wheel)


def test_the_command_line_in_three_minutes(newcomer: Newcomer) -> None:
    newcomer.run("pip install delta-maintenance")
    newcomer.run("pip install deltalake pyarrow")
    page = "docs/start/command-line.md"
    told = newcomer.follow(page, until="## Use it in scripts")
    assert "data files became 1" in told
    newcomer.report("command line", 3)
    told = newcomer.follow(page, since="## Use it in scripts")
    assert "1 table: 1 done" in told
    assert newcomer.minutes < 10


@pytest.mark.dagster
def test_dagster_in_five_minutes(newcomer: Newcomer) -> None:
    told = newcomer.follow("docs/start/dagster.md", until="`dg dev` shows the run")
    assert "checkpoint" in told and ": done" in told
    port, log = free_port(), newcomer.folder / "dg.log"
    address = f"http://127.0.0.1:{port}"
    with newcomer.running(f"dg dev --port {port}", log), open_browser() as browser:
        newcomer.wait_for("dg dev answers", lambda: answers(address), seconds=180, log=log)
        with newcomer.step("the page of the asset shows the run"):
            page = browser.new_page(viewport={"width": 1440, "height": 1200})
            page.set_default_timeout(120_000)
            page.add_init_script("localStorage.setItem('communityNux', '1')")
            page.goto(f"{address}/assets/events/maintenance")
            page.get_by_text("commits_to_replay_after").wait_for()
    newcomer.report("Dagster", 5)
    assert newcomer.minutes < 15


def answers(address: str) -> bool:
    """Whether a server answers at an address."""
    try:
        with urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False
