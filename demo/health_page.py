"""The health page of the demo."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from threading import Event

from rich.markup import escape
from telling import console
from throwaway_airflow import ApiServer

PAGE = "/delta-maintenance/"
PLUGIN = "/plugin/delta-tables"
"""The page within Airflow's own pages."""


def is_shown(server: ApiServer, tables: Sequence[str]) -> bool:
    """Whether the server answers with the page, and all tables are on it."""
    status, text = server.ask(PAGE)
    shown = status == 200 and all(table in text for table in tables)
    console.print(
        f"   [{'green]yes' if shown else 'bold red]NO '}[/]  "
        f"GET {PAGE} answers {status}, with {escape(' and '.join(tables))} on the page"
    )
    return shown


def wait_for_interrupt() -> None:
    """Returns after Ctrl-C and other signals that would end this process without its server."""
    interrupted = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: interrupted.set())
    interrupted.wait()
