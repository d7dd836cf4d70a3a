"""Output for the user: results on stdout, everything else on stderr.

rich is imported when text is drawn, because `--json` and `--help` do not need it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import message_line
from delta_maintenance.operations.core.documents import (
    cell_text,
    divide_facts,
    drawn_table,
    fields_text,
    named_parts,
    one_line_rows,
    printable,
    without_controls,
)
from delta_maintenance.operations.core.facts import Facts, shown
from delta_maintenance.operations.core.logged_progress import ProgressText, amount_text
from delta_maintenance.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

    from delta_maintenance.table.progress import Unit

_PIPED_WIDTH = 1 << 16
"""The width if stdout is not a terminal: lines are not wrapped, for `grep` and for logs."""
_MOST_BARS = 8
_TABLES = "tables"
"""The stage of a run on several tables."""
_QUIET = timedelta(seconds=5)
"""The time between two lines about a stage if stderr is not a terminal; short work prints none."""


def print_json(document: Any) -> None:
    """Prints one JSON document to stdout, in ASCII so that it does not depend on the locale."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def print_fields(title: str, fields: Mapping[str, object]) -> None:
    """Prints a titled list of names and values, for people. Empty values are omitted.

    On a terminal the list has a frame; elsewhere lines are not wrapped, for `grep` and for logs.
    """
    filled = dict(shown(fields))
    if sys.stdout.isatty():
        _print_panel(printable(title), filled)
    else:
        print(fields_text(title, filled))


def print_facts(title: str, facts: Facts) -> None:
    """Prints facts about a Plan or a Result, for people; grids come last."""
    fields, grids = divide_facts(facts)
    print_fields(title, fields)
    for grid in grids:
        print_table(grid.columns, grid.rows)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table with a header, for people.

    On a terminal that is too narrow, a path in the last column has a line of its own: it is not
    broken.
    """
    console, rows = _console(), [*rows]
    table = drawn_table(columns, rows)
    if columns[-1] != "path" or _fits(console, table):
        console.print(table)
        return
    by_path = [(path, *others) for *others, path in rows]
    for path, other_columns in named_parts(("path", *columns[:-1]), by_path):
        console.print(other_columns)
        console.print(f"      {cell_text(path)}", soft_wrap=True)


def _fits(console: Console, table: Table) -> bool:
    """Whether no text of a table needs to be wrapped; lines of a file or a pipe have no end."""
    unbounded = console.options.update(width=sys.maxsize)
    needed = console.measure(table, options=unbounded).maximum
    return not sys.stdout.isatty() or needed <= console.width


def print_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table with one line for each row: a terminal cuts off the last column."""
    for line in one_line_rows(columns, rows, width=_console().width):
        print(line)


def print_named(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table whose first column names tables; an empty name continues the row above.

    On a terminal that is too narrow, each name has a line of its own.
    """
    console, rows = _console(), [*rows]
    table = drawn_table(columns, rows)
    if _fits(console, table):
        console.print(table)
        return
    for name, columns_of_part in named_parts(columns, rows):
        console.print(name, soft_wrap=True)
        console.print(columns_of_part)


def say(line: str) -> None:
    """Prints one line to stderr, with the name of the command as its prefix.

    The line has at most about a kilobyte, and no credentials in addresses.
    """
    # In one piece, because several threads may have something to say.
    sys.stderr.write(f"delta-maintenance: {message_line(printable(line))}\n")
    sys.stderr.flush()


def say_traceback(error: BaseException) -> None:
    """Prints the traceback of an error to stderr, without credentials in addresses."""
    # Errors of other libraries may quote addresses with credentials, and names from tables.
    sys.stderr.write(without_controls(redact("".join(traceback.format_exception(error)))))


@contextmanager
def logging_to_stderr(*, verbose: bool) -> Iterator[None]:
    """Shows the library's log records on stderr: warnings, and all of them with `verbose`."""
    logger = logging.getLogger("delta_maintenance")
    handler, level = _SayHandler(verbose=verbose), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def warn(warnings: Iterable[str]) -> None:
    """Warnings of a result, one line each."""
    for warning in warnings:
        say(f"warning: {warning}")


class ProgressLine:
    """Progress of long work: a bar if stderr is a terminal, otherwise a line from time to time.

    Used as a context manager, and called like `table.progress.Progress`.
    """

    def __enter__(self) -> ProgressLine:
        self._bars: _Bars | None = _Bars() if sys.stderr.isatty() else None
        self._text = ProgressText()
        self._began = clock.now()
        self._spoke: dict[str, datetime] = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(
        self,
        label: str,
        done: int,
        total: int | None,
        /,
        *,
        unit: Unit = "count",
        prefix: str | None = None,
    ) -> None:
        if self._bars is not None:
            self._bars.show(label, done, total, unit)
            return
        line, now = self._text(label, done, total, unit=unit), clock.now()
        # All tables of a run share one line.
        stage = label if prefix is None else _TABLES
        if now - self._spoke.get(stage, self._began) >= _QUIET:
            self._spoke[stage] = now
            say(f"{prefix}{line}" if prefix is not None else line)

    def of_tables(self, number: int) -> TablesProgress:
        """Returns the progress of a run on so many tables."""
        return TablesProgress(self, number)


class TablesProgress:
    """Progress of a run on several tables: how many are done, and the stage of one of them."""

    def __init__(self, line: ProgressLine, number: int) -> None:
        self._line = line
        self._number = number
        self._done = 0
        self._lock = threading.Lock()

    def of(self, table: str) -> Callable[..., None]:
        """Returns the progress of one table, whose name goes before each stage."""
        if self._number == 1:
            return self._line

        def report(label: str, done: int, total: int | None, /, *, unit: Unit = "count") -> None:
            prefix = f"{self._done:,} of {self._number:,} tables; "
            self._line(f"{table}: {label}", done, total, unit=unit, prefix=prefix)

        return report

    def end(self) -> None:
        """Counts a table that is done."""
        with self._lock:
            self._done += 1
        if self._number > 1:
            self._line(_TABLES, self._done, self._number)


class _Bars:
    """One bar per stage, shown from its first report on; of many, the newest."""

    def __init__(self) -> None:
        from rich import progress

        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[amounts]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=_console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._progress.start()

    def show(self, label: str, done: int, total: int | None, unit: Unit) -> None:
        amounts = amount_text(done, unit)
        if total is not None:
            amounts += f" of {amount_text(total, unit)}"
        with self._lock:
            if label not in self._tasks:
                self._tasks[label] = self._progress.add_task(
                    printable(label), total=total, amounts=amounts
                )
            if len(self._tasks) > _MOST_BARS:
                oldest = next(stage for stage in self._tasks if stage != _TABLES)
                self._progress.remove_task(self._tasks.pop(oldest))
            self._progress.update(self._tasks[label], completed=done, total=total, amounts=amounts)

    def stop(self) -> None:
        self._progress.stop()


class _SayHandler(logging.Handler):
    def __init__(self, *, verbose: bool) -> None:
        super().__init__()
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if self._verbose and error is not None:
            say_traceback(error)
        level = record.levelname.lower()
        say(f"{level}: {record.getMessage()}")


def _print_panel(title: str, fields: Mapping[str, object]) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        grid.add_row(name, cell_text(value))
    # A plain string would be parsed as markup, and may be the address of a table.
    _console().print(Panel(grid, title=Text(title), title_align="left", expand=False))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # The text comes from tables and must not be parsed as markup.
    return Console(
        file=stream,
        width=None if stream.isatty() else _PIPED_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )
