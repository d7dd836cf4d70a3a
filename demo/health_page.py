"""The health page of the demo."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from rich.markup import escape
from telling import console
from throwaway_airflow import Airflow, ask

PAGE = "/delta-maintenance/"
"""As Airflow's own pages frame it at /plugin/delta-tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPage:
    """The page while its server runs."""

    address: str
    """For a browser, within Airflow's own pages."""
    shown: bool
    """Whether the server answered with the page, and all tables are on it."""


@contextmanager
def served(airflow: Airflow, tables: Sequence[str], *, forms: bool) -> Iterator[HealthPage]:
    """Serves the page until the end of the block.

    Without `forms` the server starts a little sooner, and the buttons of the page have no forms.
    """
    if forms:
        # The forms are drawn from the Dags in Airflow's database.
        airflow.run("dags", "reserialize")
    with airflow.api_server() as address:
        status, text = ask(address, PAGE)
        shown = status == 200 and all(table in text for table in tables)
        console.print(
            f"   [{'green]yes' if shown else 'bold red]NO '}[/]  "
            f"GET {PAGE} answers {status}, with {escape(' and '.join(tables))} on the page"
        )
        yield HealthPage(address=f"{address}/plugin/delta-tables", shown=shown)


def wait_for_interrupt() -> None:
    """Returns after Ctrl-C and other signals that would end this process without its server."""
    interrupted = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: interrupted.set())
    interrupted.wait()
