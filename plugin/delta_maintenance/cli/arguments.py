"""Arguments that several verbs share, and the conversion of their text to values.

This module must not load pyarrow, pydantic or rich, so that `--help` responds at once.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, get_args

from delta_maintenance.address import is_catalog_name
from delta_maintenance.errors import closest
from delta_maintenance.limits import LOG_MEMORY_VARIABLE
from delta_maintenance.operations.core.flags import Group
from delta_maintenance.operations.core.operation import Purpose
from delta_maintenance.redaction import redact

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot
    from delta_maintenance.table.read.table import Table

_TABLE_HELP = (
    "the path or the URI (file:, s3:, gs:, abfss:, az:, hdfs:, webhdfs:) of the table, or its name "
    "in a catalog, such as uc://main.sales.orders"
)
_LOG_MEMORY_HELP = (
    "memory that one file of a log may take while it is read, such as 6GiB or 512MiB; by default "
    f"{LOG_MEMORY_VARIABLE} of the environment, or else 4GiB"
)
_STORAGE_HELP = (
    "an option of the table's store, such as AWS_ENDPOINT_URL=http://localhost:9000; repeatable. "
    "Secrets belong in the environment"
)
_WIDEST_EXAMPLE = 74
_WIDEST_HELP = 100


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose options cannot be abbreviated.

    An unambiguous abbreviation could become ambiguous when another option is added. `--help` shows
    the arguments and the options that people use, `--help-all` all options by their groups.
    """

    purpose: Purpose = "look"
    summary = ""
    json_help = ""
    """The help of the common option `--json`."""

    def __init__(self, **settings: Any) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST_HELP) - 2
        formatter = partial(_HelpFormatter, width=width)
        super().__init__(**settings, allow_abbrev=False, add_help=False, formatter_class=formatter)
        self._positionals.title = "arguments"
        self._groups = {"common": self._optionals}
        self.subjects: list[argparse.Action] = []
        """The options for what the verb is about: a word without an option is meant for them."""
        self.by_position: list[argparse.Action] = []
        """Those of them that take such a word."""

    def group(self, title: Group) -> argparse._ArgumentGroup:
        """Returns the group of options with this title."""
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    def add_help_options(self) -> None:
        """Adds `--help` and `--help-all`."""
        self.add_argument("-h", "--help", action="help", help="print this help")
        self.add_argument(
            "--help-all", action=_HelpAllAction, nargs=0, help="print help with all options"
        )

    def add_common_options(self) -> None:
        """Adds the options that all verbs have. Called last, so that help begins with the
        verb's own.
        """
        self.add_argument("--json", action="store_true", help=self.json_help)
        self.add_argument(
            "--storage-option",
            dest="storage_options",
            metavar="K=V",
            action="append",
            default=[],
            type=key_value,
            help=_STORAGE_HELP,
        )
        self.group("storage").add_argument("--log-memory", metavar="SIZE", help=_LOG_MEMORY_HELP)
        self.group("output").add_argument(
            "-v", "--verbose", action="store_true", help="print more on stderr, with tracebacks"
        )
        self.add_help_options()

    def format_usage(self) -> str:
        """Returns the usage: the arguments and the required options."""
        words = [f"usage: {self.prog}", *map(_usage, self._positionals._group_actions)]
        words += [
            f"{action.option_strings[0]} {_value_name(action)}"
            for action in self._actions
            if action.option_strings and (action.required or action in self.by_position)
        ]
        return f"{_fill(' '.join([*words, '[options]']), self._get_formatter()._width, ' ' * 7)}\n"

    def format_help(self, *, everything: bool = False) -> str:
        """Returns the help, with all groups of options or only with the options that people use."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        sections = [("arguments", self._positionals), ("options", self._optionals)]
        if everything:
            titles = (title for title in get_args(Group)[1:] if title in self._groups)
            sections += [(title, self._groups[title]) for title in titles]
        for title, section in sections:
            formatter.start_section(title)
            formatter.add_text(section.description)
            formatter.add_arguments(section._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return f"{self.format_usage()}\n{formatter.format_help()}"

    def settle(self, arguments: argparse.Namespace, words: Sequence[str]) -> None:
        """Gives the words that are neither options nor arguments to the options that take them by
        their position, and ends with an error about all others.
        """
        words = [*words]
        for action in self.by_position:
            if getattr(arguments, action.dest) is None:
                if not words or words[0].startswith("-"):
                    self.error(f"{action.option_strings[0]} {_value_name(action)} is missing")
                setattr(arguments, action.dest, words.pop(0))
        if not words:
            return
        unknown = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if unknown is not None:
            meant = closest(unknown, self._option_string_actions, likeness=0.6)
            self.error(f"there is no option {unknown}{_hint(meant)}")
        self.error(f"too many arguments: {' '.join(words)}{_hint(self._option_for(words[0]))}")

    def _option_for(self, word: str) -> str | None:
        """Returns the option that a word without one is meant for, with the word."""
        actions = [action for action in self.subjects if action.nargs != 0]
        pairs = [action for action in actions if action.type is key_value]
        meant = [action for action in actions if action not in pairs]
        if set("=<>") & set(word):
            where = self._option_string_actions.get("--where")
            meant = pairs or ([where] if where is not None else [])
        return f"{meant[0].option_strings[0]} {shlex.quote(word)}" if meant else None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [*map(str, action.choices)]
            meant = closest(str(value), choices, likeness=0.6)
            names = f"; give {', '.join(choices)}" if meant is None else _hint(meant)
            raise argparse.ArgumentError(action, f"there is no {value!r}{names}")

    def error(self, message: str) -> NoReturn:
        # Quoted input must stay on one line.
        line = redact(" ".join(message.split()))
        end = "" if line.endswith("?") else ";"
        self.exit(2, f"delta-maintenance: {line}{end} see '{self.prog} --help'\n")


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, leaves indented lines as they are, and breaks no word at a hyphen."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = groupby(text.splitlines(), lambda line: line[:1] in ("", " "))
        return "\n".join(
            "\n".join(lines) if is_laid_out else _fill(" ".join(lines), width)
            for is_laid_out, lines in blocks
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _fill(text, width).split("\n")


class _HelpAllAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        sys.stdout.write(parser.format_help(everything=True))
        parser.exit()


class Verbs(Protocol):
    """The object to which a verb adds its parser, as `ArgumentParser.add_subparsers` returns it."""

    def add_parser(self, name: str, *, help: str, description: str, epilog: str) -> ArgumentParser:
        """Adds the parser of a new verb."""


def add_verb(
    verbs: Verbs,
    name: str,
    *,
    purpose: Purpose,
    summary: str,
    description: str,
    json_help: str,
    example: str,
) -> ArgumentParser:
    """Adds the parser of one verb; the common options follow the verb's own.

    `example` is a command line without the name of the program.
    """
    parser = verbs.add_parser(
        name, help=summary, description=description, epilog=f"example:\n  {_on_lines(example)}"
    )
    parser.purpose, parser.summary, parser.json_help = purpose, summary, json_help
    parser.set_defaults(parser=parser)
    return parser


def add_table(parser: ArgumentParser) -> None:
    """Adds the address of a table."""
    parser.add_argument("table", metavar="TABLE", help=_TABLE_HELP)


def add_time_travel(parser: ArgumentParser) -> None:
    """Adds `--version` and `--timestamp`, which exclude each other."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--version", metavar="N", type=int, help="the table at version N, by default the latest"
    )
    either.add_argument(
        "--timestamp",
        metavar="T",
        help="the version that was current at T: ISO 8601 with a zone, such as "
        "2026-01-31T12:00:00Z, or a date",
    )


def add_spark(parser: ArgumentParser) -> None:
    """Adds the options for Spark."""
    spark = parser.group("Spark")
    spark.description = (
        "The job is started with spark-submit, of SPARK_HOME or else of the pyspark that is "
        "installed here."
    )
    spark.add_argument(
        "--master",
        metavar="URL",
        help="such as local[*], spark://HOST:7077, yarn or k8s://URL; sc://HOST:PORT is a server "
        "of Spark Connect, as is SPARK_REMOTE in the environment, where its token belongs",
    )
    spark.add_argument(
        "--spark-conf",
        metavar="K=V",
        action="append",
        default=[],
        type=key_value,
        help="a Spark property; repeatable. Secrets belong into the environment or into "
        "spark-defaults.conf, not here",
    )


def open_snapshot(arguments: argparse.Namespace) -> Snapshot:
    """Opens the snapshot that the arguments of `add_time_travel` select."""
    return open_table(arguments).snapshot(version=arguments.version, timestamp=arguments.timestamp)


def open_table(arguments: argparse.Namespace) -> Table:
    """Opens the table that the command line names."""
    # Loads pyarrow, which is not needed before a verb runs.
    import delta_maintenance

    return delta_maintenance.open_table(arguments.table, dict(arguments.storage_options))


def locate_table(arguments: argparse.Namespace) -> None:
    """Replaces the name of a table in a catalog by its address and the options of its store.

    A verb that only reads, or a dry run, asks the catalog for credentials for reading alone.
    `arguments.catalog_name` keeps the name; it is None for a table that is given by its address.
    """
    arguments.catalog_name = None
    if arguments.table is None or not is_catalog_name(arguments.table):
        return
    from delta_maintenance.address import Access
    from delta_maintenance.catalogs.reference import locate

    needed = arguments.access(arguments) if "access" in arguments else Access.READ
    # Credentials for writing are requested with the plan.
    access = Access.READ if needed is Access.READ else None
    located = locate(arguments.table, dict(arguments.storage_options), access=access)
    arguments.catalog_name = arguments.table
    arguments.table = located.address
    arguments.storage_options = list(located.storage_options.items())


def key_value(text: str) -> tuple[str, str]:
    """Parses `K=V`. The error does not repeat the text, which may be a secret."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("not of the form K=V")
    return key, value


def at_least(minimum: int, text: str) -> int:
    """Parses an integer of at least `least`."""
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {minimum}")
    return number


def _usage(positional: argparse.Action) -> str:
    value = _value_name(positional)
    return {"?": f"[{value}]", "*": f"[{value} ...]"}.get(str(positional.nargs), value)


def _value_name(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return f"{{{','.join(map(str, action.choices))}}}"
    return str(action.metavar or action.dest.upper())


def _hint(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant}?"


def _fill(text: str, width: int, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(words, width, subsequent_indent=indent, break_on_hyphens=False)


def _on_lines(example: str) -> str:
    """Returns a command line, continued on further lines as shells do if it is long."""
    lines = ["delta-maintenance"]
    for word in map(shlex.quote, shlex.split(example)):
        if len(lines[-1]) + len(word) > _WIDEST_EXAMPLE:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return "\n".join(lines)
