"""The policy for the table of the demo, its Dag, and the health page."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from rich.markup import escape
from telling import console, timed
from throwaway_airflow import Airflow, ask

PAGE = "/delta-maintenance/"
"""As Airflow's own pages frame it at /plugin/delta-tables."""
_POLICY = """\
version: 1
defaults:
  checkpoint: {max_commits: 100}
  fsck: {every: 30 days}
  vacuum: {every: 7 days}
  approval: [vacuum]
tables:
  - {name: NAME, uri: URI}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPage:
    """The page while its server runs."""

    address: str
    """For a browser, within Airflow's own pages."""
    shown: bool
    """Whether the page was there when asked for, with the table on it."""


def with_policy(airflow: Airflow, table: Path) -> Airflow:
    """The same Airflow with a policy that names this table, and a folder for assessments."""
    policy = airflow.home / "policy.yaml"
    policy.write_text(_POLICY.replace("NAME", table.name).replace("URI", f"'{table}'"))
    return replace(
        airflow,
        settings={
            "AIRFLOW__DELTA_MAINTENANCE__POLICY": os.fspath(policy),
            "AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS": os.fspath(airflow.home / "assessments"),
        },
    )


@contextmanager
def served(airflow: Airflow, table: str, *, forms: bool) -> Iterator[HealthPage]:
    """Does what is due by the policy, and serves the page for as long as it is wanted.

    Without `forms` it is up a little sooner, and its buttons lead nowhere.
    """
    with timed("the DagRun: {seconds:.0f} s"):
        airflow.run("dags", "test", "delta_maintenance")
    if forms:
        # They are drawn from the Dags that Airflow's database has.
        airflow.run("dags", "reserialize")
    with airflow.api_server() as address:
        status, text = ask(address, PAGE)
        shown = status == 200 and table in text
        console.print(
            f"   [{'green]yes' if shown else 'bold red]NO '}[/]  "
            f"GET {PAGE} answers {status}, with {escape(table)} on the page"
        )
        yield HealthPage(address=f"{address}/plugin/delta-tables", shown=shown)


def wait_for_interrupt() -> None:
    """Returns after Ctrl-C, and at whatever else would end this process and leave the server."""
    interrupted = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: interrupted.set())
    interrupted.wait()
