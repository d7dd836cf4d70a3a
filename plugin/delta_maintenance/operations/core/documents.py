"""Plans, Results and reports as people see them: the facts that a record states, as text and HTML.

The same rows stand on a terminal, in a log and in a notebook. Names and messages come from tables
of any origin, so control characters are escaped, and so is HTML. rich is imported when a table is
drawn, because `--json` and `--help` do not need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from delta_maintenance.operations.core.facts import Facts, Grid, fact_text, shown
from delta_maintenance.operations.core.given_options import replace_flags
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation, operations

if TYPE_CHECKING:
    from rich.table import Table


_WIDTH = 100
"""The width of tables in a text that no terminal shows yet."""
_SHORT = 20
"""The length up to which texts are not wrapped if names have lines of their own."""
_LEAST_BESIDE = 34
"""The space for the other columns beside a name in one line."""
_LONGEST = 60
"""The length from which on texts in the first column of a table are wrapped."""

_CELL = 300
"""The maximum number of characters in a cell of a table of Markdown."""


class Shown:
    """Base class of documents that people look at: `print` and notebooks show their facts."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Otherwise `dataclass` gives the class a `__repr__` with all fields, which IPython prefers
        # to the methods of a base class.
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def heading(self) -> str:
        """The title above the facts."""
        raise NotImplementedError

    def summary(self) -> str:
        """The document in one line."""
        return self.heading()

    def facts(self) -> Facts:
        """The facts, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return facts_text(self.heading(), self.facts())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {printable(self.summary())}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # IPython stacks the containers: in a list, a document is one line.
        printer.text(repr(self) if printer.stack[1:] else str(self))

    def _repr_html_(self) -> str:
        return facts_html(self.heading(), self.facts())


def facts_text(title: str, facts: Facts) -> str:
    """Returns the facts as lines of text, with grids last. Lines are not wrapped."""
    fields, grids = divide_facts(facts)
    tables = [_table_text(grid) for grid in grids]
    return "\n".join([fields_text(title, fields), *tables])


def fields_text(title: str, fields: Mapping[str, object]) -> str:
    """Returns a titled list of names and values, for `grep` and for logs: no line is wrapped."""
    cells = {name: cell_text(value) for name, value in fields.items()}
    width = max(map(len, cells), default=0)
    lines = [printable(title)]
    for name, cell in cells.items():
        first_line, *others = cell.split("\n")
        lines.append(f"  {name:<{width}}  {first_line}")
        lines += [f"  {'':<{width}}  {line}" for line in others]
    return "\n".join(lines)


def facts_html(title: str, facts: Facts) -> str:
    """Returns the facts as HTML tables, without scripts and style sheets."""
    fields, grids = divide_facts(facts)
    rows = [f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in fields.items()]
    tables = [f"<table>{''.join(rows)}</table>"] if rows else []
    for grid in grids:
        head = "".join(_cell("th", column) for column in grid.columns)
        body = "".join(
            f"<tr>{''.join(_cell('td', value) for value in row)}</tr>" for row in grid.rows
        )
        tables.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return f"<p><b>{escape(printable(title))}</b></p>{''.join(tables)}"


def divide_facts(facts: Facts) -> tuple[dict[str, object], list[Grid]]:
    """Returns the facts that are not empty: single values by name, and the grids."""
    named = dict(shown(facts))
    grids = [value for value in named.values() if isinstance(value, Grid)]
    return {name: value for name, value in named.items() if not isinstance(value, Grid)}, grids


def drawn_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Returns a table for a console of rich.

    Its first column is not wrapped, except for names so long that no other column has space.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    cells = [[*map(cell_text, row)] for row in rows]
    longest = max((len(row[0]) for row in cells if row), default=0)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0 and longest <= _LONGEST)
    for row in cells:
        table.add_row(*row)
    return table


def one_line_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int
) -> Iterator[str]:
    """Yields the head and each row as one line, cut off at the width.

    A name in the first column that leaves too little space for the others has a line of its own.
    """
    from rich.cells import cell_len, set_cell_size

    cells = [[*columns], *([*map(cell_text, row)] for row in rows)]
    most = max(_SHORT, width - _LEAST_BESIDE)
    widths = [
        max(size for row in cells if (size := cell_len(row[index])) <= most or index)
        for index in range(len(columns) - 1)
    ]
    for row in cells:
        if cell_len(row[0]) > most:
            yield row[0]
            row[0] = ""
        fixed = [set_cell_size(cell, size) for cell, size in zip(row, widths, strict=False)]
        line = "  ".join([*fixed, row[-1]]).rstrip()
        yield line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def named_parts(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> Iterator[tuple[str, Table]]:
    """Yields the heads, and each name of the first column with a table of its rows.

    All tables have the same columns. Texts of more than one line share the space.
    """
    from rich.table import Table

    cells = [[*map(cell_text, row)] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][1:]

    def new() -> Table:
        table = Table(
            box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=True
        )
        table.add_column(width=2)
        for width in widths:
            if width <= _SHORT:
                table.add_column(width=width, no_wrap=True)
            else:
                table.add_column(overflow="fold", ratio=min(width, _LONGEST))
        return table

    table_part, name = new(), cells[0][0]
    for row in cells:
        if row[0] not in ("", name):
            yield name, table_part
            table_part, name = new(), row[0]
        table_part.add_row("", *row[1:])
    yield name, table_part


def cell_text(value: object) -> str:
    """Formats a value as one or more lines."""
    if isinstance(value, tuple | list):
        return "\n".join(map(cell_text, value))
    if isinstance(value, Mapping):
        return "\n".join(f"{printable(str(key))}={cell_text(item)}" for key, item in value.items())
    return printable(fact_text(value))


def printable(text: str) -> str:
    """Returns the text on one line and without control characters.

    An escape sequence in a name must not reach a terminal.
    """
    return without_controls(" ".join(text.split()))


def markdown_cell(text: str) -> str:
    """Formats untrusted text as a code span in a table of Markdown; empty for an empty text.

    No part of it is parsed as Markdown or HTML, or changes the direction of the text. Of a long
    text, 300 characters are shown.
    """
    plain = printable(text).replace("`", "'").replace("|", "¦")
    shortened = plain if len(plain) <= _CELL else f"{plain[: _CELL - 1]}…"
    return f"`{shortened}`" if shortened else ""


def markdown_row(cells: Iterable[str]) -> str:
    """Formats a row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def without_controls(text: str) -> str:
    """Returns the text with control characters escaped, except line ends."""
    return "".join(
        char if char == "\n" or char.isprintable() else ascii(char)[1:-1] for char in text
    )


def _cell(tag: Literal["th", "td"], value: object) -> str:
    # Notebooks align cells to the right, and only the style of the cell itself overrides that.
    text = escape(cell_text(value)).replace("\n", "<br>")
    return f'<{tag} style="text-align:left;vertical-align:top">{text}</{tag}>'


def _table_text(grid: Grid) -> str:
    from io import StringIO

    from rich.console import Console

    # The text comes from tables and must not be parsed as markup.
    # A kernel of Jupyter asks for colors and for rich's own cells; this is plain text.
    out = Console(
        file=StringIO(),
        force_jupyter=False,
        force_terminal=False,
        width=_WIDTH,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        out.print(drawn_table(grid.columns, grid.rows))
    return captured.get().rstrip("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(Shown, Record):
    """A Plan or a Result, with the fields that all of them have.

    The document of an operation begins with the table and the version, and ends with the reason and
    the notes; a class that declares one of these itself gives it another place.
    """

    if TYPE_CHECKING:
        table: str
        """The address of the table."""
        version: int
        """Of a Plan, the latest version when it was made (of `fsck`, -1 if the log has none). Of a
        Result, the version of its commit; without one, the latest version that the run read."""
        notes: tuple[str, ...] = ()
        """Skipped parts and warnings, with reasons."""

    def __init_subclass__(cls) -> None:
        # With slots, `dataclass` creates the class a second time, which `super()` does not know.
        super(Document, cls).__init_subclass__()
        # Fields that a class inherits come before its own ones, so each document has these itself.
        own = inspect.get_annotations(cls)
        if not own or "table" in getattr(cls, "__dataclass_fields__", own):
            return
        last = {"reason": str, "notes": tuple[str, ...]}
        if not issubclass(cls, Plan):
            del last["reason"]
        first = {"table": str, "version": int}
        cls.__annotations__ = {
            **{name: kind for name, kind in first.items() if name not in own},
            **own,
            **{name: kind for name, kind in last.items() if name not in own},
        }
        cls.notes = ()  # type: ignore[misc]

    def heading(self) -> str:
        return _record_of(self).heading(self)

    def summary(self) -> str:
        outcome = getattr(self, "status", None) or getattr(self, "reason", "")
        return f"table {self.table}, version {self.version}: {outcome}"

    def facts(self) -> Facts:
        """The facts, with the names of options instead of flags of the command line."""
        record = _record_of(self)
        facts: Facts = _with_option_names(record.facts(self), record.name)
        return facts


@dataclass(frozen=True, kw_only=True)
class Plan(Document):
    """What `apply` would do."""

    __slots__ = ()

    if TYPE_CHECKING:
        reason: str
        """One sentence: the reason for the work, or why there is none."""

        @property
        def is_noop(self) -> bool:
            """Whether `apply` would change nothing."""


@dataclass(frozen=True, kw_only=True)
class Result(Document):
    """What was done."""

    __slots__ = ()

    if TYPE_CHECKING:
        status: str
        """The operation's own status; see `OperationRecord.outcomes`."""


def _with_option_names(value: Any, operation: str) -> Any:
    """Returns facts, or a value of one, with the names of options instead of flags."""
    if isinstance(value, str):
        return replace_flags(value, operation)
    if isinstance(value, tuple | list):
        return [_with_option_names(item, operation) for item in value]
    if isinstance(value, Mapping):
        return {
            replace_flags(name, operation): _with_option_names(item, operation)
            for name, item in value.items()
        }
    if isinstance(value, Grid):
        return Grid(value.columns, _with_option_names(value.rows, operation))
    return value


def _record_of(document: Any) -> AnyOperation:
    kind = type(document)
    return next(record for record in operations() if kind in (record.plan, record.result))
