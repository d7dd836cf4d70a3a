"""From `pip install` to the first gain, as the documents say it, in minutes of this machine.

Each test has an empty environment and an empty folder. Packages come from the index of the machine,
the distribution from a wheel of this checkout.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from delta_maintenance.policies.definition import load_policy
from tests.support.newcomer import ROOT, Newcomer
from tests.support.servers.browser import open_browser
from tests.support.servers.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
shell.run_cell("from delta_maintenance import DeltaTable; DeltaTable('none').snapshot()")
print("with its traceback")
shell.run_cell("%tb plain")
"""


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


def test_an_error_in_a_notebook_is_its_message(newcomer: Newcomer) -> None:
    newcomer.run("pip install delta-maintenance")
    newcomer.run("pip install ipython")
    message = "NotADeltaTableError: table none: the folder _delta_log is missing"
    lines = newcomer.run(f"python - <<'END'\n{NOTEBOOK}END", name="a notebook")
    brief, traceback = lines.split("with its traceback")
    assert message in brief and "%tb plain shows the traceback." in brief
    assert "File" not in brief
    assert message in traceback and "in snapshot" in traceback


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


@pytest.mark.dagster
def test_an_approval_in_dagster_by_clicks(newcomer: Newcomer) -> None:
    page = "docs/start/dagster.md"
    newcomer.follow(page, until="## 2. Write a table")
    newcomer.run("pip install deltalake pyarrow")
    newcomer.run(f"python - <<'END'\n{OLD_TABLE}END", name="an old table")
    newcomer.follow(page, since="## 3. Name the table", until="Further tables are")
    newcomer.follow(page, since="## 4. Run it", until="Dagster keeps its runs")
    port, log = free_port(), newcomer.folder / "dg.log"
    address = f"http://127.0.0.1:{port}"
    events = newcomer.work / "lake/events"
    with newcomer.running(f"dg dev --port {port}", log), open_browser() as browser:
        newcomer.wait_for("dg dev answers", lambda: answers(address), seconds=180, log=log)
        context = browser.new_context(viewport={"width": 1440, "height": 1000})
        seen = context.new_page()
        seen.set_default_timeout(120_000)
        seen.add_init_script("localStorage.setItem('communityNux', '1')")

        def launch() -> None:
            seen.get_by_role("button", name="Launch run").click()
            seen.wait_for_url(re.compile("/runs/"))
            seen.get_by_text("Success", exact=True).first.wait_for()

        with newcomer.step("the job without configuration lists the plan"):
            seen.goto(f"{address}/jobs")
            seen.get_by_role("link", name="delta_maintenance_approve").first.click()
            seen.get_by_role("link", name="Launchpad").or_(
                seen.get_by_role("tab", name="Launchpad")
            ).first.click()
            launch()
            seen.get_by_text("Show Markdown").last.click()
            link = seen.get_by_role("link", name="Open the launchpad with these plans")
            filled_in = f"{address}{link.get_attribute('href')}"
        assert len([*events.glob("*.parquet")]) == 111
        with newcomer.step("its link fills in the launchpad, which runs the plan"):
            seen.goto(filled_in)
            launch()
        assert len([*events.glob("*.parquet")]) == 1


def test_airflow_in_eight_minutes(newcomer: Newcomer) -> None:
    page = "docs/start/airflow.md"
    newcomer.run("pip install deltalake pyarrow")
    newcomer.run(f"python - <<'END'\n{OLD_TABLE}END", name="an old table")
    home = newcomer.folder / "airflow"
    (home / "dags").mkdir(parents=True)
    port, log = free_port(), newcomer.folder / "airflow.log"
    address = f"http://127.0.0.1:{port}"
    newcomer.environment |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    told = newcomer.follow(page, until="The setting tells the health page", writes=False)
    assert "lake/events" in told and "delta_maintenance_dags.py" in told
    assert load_policy(newcomer.work / "policy.yaml").defaults.approval == ("vacuum",)
    with newcomer.running("airflow standalone", log), open_browser() as browser:
        newcomer.wait_for("Airflow answers", lambda: answers(address), seconds=600, log=log)
        password = newcomer.wait_for("its password", lambda: password_in(home), seconds=60, log=log)

        def is_listed() -> bool:
            return "delta_manual" in newcomer.quietly("airflow dags list")

        newcomer.wait_for("Airflow has read the Dags", is_listed, seconds=400, log=log)
        newcomer.follow(page, since="Then turn the Dags on", until="| Dag | runs | does |")
        seen = browser.new_page(viewport={"width": 1440, "height": 1000})
        seen.set_default_timeout(60_000)
        with newcomer.step("signing in"):
            seen.goto(address)
            seen.get_by_label("Username").fill("admin")
            seen.get_by_label("Password").fill(password)
            seen.get_by_role("button", name="Sign in").click()
            seen.wait_for_url(lambda url: "/login" not in url)
            seen.get_by_test_id("nav-home-link").wait_for()
        with newcomer.step("a plan waits on the page"):

            def waits() -> int:
                seen.goto(f"{address}/delta-maintenance/")
                return seen.get_by_text("plan waits for you").count()

            newcomer.until(waits, seconds=300, log=log)
        before = len([*(newcomer.work / "lake/events").glob("*.parquet")])
        with newcomer.step("the plan is approved on the page, and its files are gone"):
            seen.get_by_role("link", name="vacuum of").first.click()
            choice = seen.get_by_label("vacuum of lake/events")

            def is_asked() -> bool:
                # The plan exists a little earlier than the question about it.
                seen.reload()
                return choice.is_enabled()

            newcomer.until(is_asked, seconds=120, log=log)
            choice.check()
            seen.get_by_role("button", name="Approve").click()
            seen.get_by_text("Approved: its run begins now.").wait_for()
            newcomer.until(
                lambda: len([*(newcomer.work / "lake/events").glob("*.parquet")]) == 1,
                seconds=300,
                log=log,
            )
        assert before == 111
    newcomer.report("Airflow", 8)
    assert newcomer.minutes < 20


OLD_TABLE = """\
import glob, os, re, time
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

for hour in range(110):
    rows = pa.table({"hour": [hour % 40] * 10, "value": list(range(10))})
    write_deltalake("lake/events", rows, mode="append")
DeltaTable("lake/events").optimize.compact()
old = time.time() - 30 * 86400
*_, newest = sorted(glob.glob("lake/events/_delta_log/*.json"))
with open(newest) as file:
    text = file.read()
text = re.sub(r'"(deletionT|t)imestamp":[0-9]+', rf'"\\1imestamp":{old * 1000:.0f}', text)
with open(newest, "w") as file:
    file.write(text)
for path in glob.glob("lake/events/**/*", recursive=True):
    os.utime(path, (old, old))
"""
"""Writes a table, small files of which were merged a month ago."""


def password_in(home: Path) -> str | None:
    """The password that Airflow has made for the user `admin`."""
    file = home / "simple_auth_manager_passwords.json.generated"
    return json.loads(file.read_text())["admin"] if file.exists() and file.read_text() else None


def answers(address: str) -> bool:
    """Whether a server answers at an address."""
    try:
        with urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False
