"""The `delta-maintenance` command: selects the verb and sets the exit status.

stdout carries the result and nothing else; logs, warnings, progress and errors go to stderr. Exit
status: 0 done or nothing to do, 1 failed part-way, 2 usage, 3 refused, 4 conflict, 5 corrupt or not
a Delta table; 130 interrupted, 141 if stdout was closed.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import get_args

from delta_maintenance import __version__
from delta_maintenance.cli import operation_verb
from delta_maintenance.cli.arguments import ArgumentParser, Verbs, locate_table
from delta_maintenance.cli.output import logging_to_stderr, say, say_traceback
from delta_maintenance.cli.process import own_the_process
from delta_maintenance.errors import (
    DeltaMaintenanceError,
    InvalidRequestError,
    NotADeltaTableError,
    closest,
)
from delta_maintenance.limits import default_log_memory
from delta_maintenance.operations.core.operation import Purpose
from delta_maintenance.operations.core.registry import BUILT_IN, find, names, operations

_FAILED = 1
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""The exit status that shells report for a program ended by a closed pipe. Not 0, because the
output is incomplete.
"""

_READING = ("inspect", "files", "history", "health")
_TABLES = (
    *("init", "tables", "assess", "run", "approve", "acknowledge", "ledger", "orphans"),
    *("spark-spec", "spark-stage"),
)
_MODULES = {
    **dict.fromkeys(_READING, "reading"),
    "spark-spec": "spark_spec",
    "spark-stage": "spark_spec",
}
"""The verbs that are not operations, in the order of the help: before the operations and after
them. Each has a module of the same name in `verbs`, unless another name is given here."""

_COMPLETING = "_ARGCOMPLETE"
_MORE_HELP = "'VERB --help' shows the options that people use, --help-all the exit statuses."
_EXIT_STATUSES = """\
exit status:
  0  done, also when there was nothing to do
  1  failed part-way
  2  wrong usage: correct the command line
  3  refused: unsupported table feature or unsafe request, nothing was touched
  4  conflict with another writer, retries spent
  5  the table is corrupt or not a Delta table

stdout carries the result alone; warnings, progress and errors go to stderr."""


def verbs() -> tuple[str, ...]:
    """The names of all verbs, in the order of the help."""
    return (*_READING, *names(), *_TABLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, by default that of the process, and returns its exit status."""
    if argv is None:
        own_the_process()
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parse(words)
    except SystemExit as ended:
        # The parser has already printed help on stdout, or the error on stderr.
        return ended.code if isinstance(ended.code, int) else _FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding cannot represent must not cause a failure.
        sys.stdout.reconfigure(errors="backslashreplace")
    with logging_to_stderr(verbose=arguments.verbose):
        return _run(arguments)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    if _COMPLETING in os.environ:
        # The shell asks for completions of the line so far, and runs nothing.
        import argcomplete

        argcomplete.autocomplete(_parser(os.environ["COMP_LINE"].split()[1:]))
    parser = _parser(words)
    if not words:
        parser.print_help()
        parser.exit()
    known_verbs = (*_READING, *BUILT_IN, *_TABLES)
    if not words[0].startswith("-") and words[0] not in known_verbs and words[0] not in verbs():
        meant = closest(words[0], verbs(), likeness=0.6)
        hint = f"; did you mean {meant}?" if meant is not None else ""
        parser.error(f"there is no verb {words[0]!r}{hint}")
    arguments, further_words = parser.parse_known_args(words)
    arguments.parser.settle(arguments, further_words)
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    try:
        # A verb for many tables reports failed tables itself and only returns the exit status.
        with default_log_memory(getattr(arguments, "log_memory", None)):
            locate_table(arguments)
            status: int | None = arguments.run(arguments)
        # Flushed here, where a failure can still become an exit status.
        sys.stdout.flush()
    except NotADeltaTableError as error:
        failure = _with_remedy_near(error, arguments)
        return _report_failure(failure, str(failure.locate(table=arguments.table)), arguments)
    except DeltaMaintenanceError as error:
        return _report_failure(error, str(error.locate(table=arguments.table)), arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        _settle_stdout()
        return _BROKEN_PIPE
    except Exception as error:
        hint = "" if arguments.verbose else "; run again with -v for the details"
        return _report_failure(error, f"{type(error).__name__}: {error}{hint}", arguments)
    return status or 0


def _with_remedy_near(
    error: NotADeltaTableError, arguments: argparse.Namespace
) -> DeltaMaintenanceError:
    """Returns the error with an address near the given one as its remedy. It is the caller's if
    nothing is at the given address.
    """
    if arguments.table is None:
        return error
    from delta_maintenance.policies.tree_search import holds_nothing, remedy_near

    options = dict(arguments.storage_options)
    error.remedy = remedy_near(arguments.table, options) or error.remedy
    if arguments.catalog_name is None and holds_nothing(arguments.table, options):
        return InvalidRequestError("there is no such folder", remedy=error.remedy)
    return error


def _report_failure(error: Exception, line: str, arguments: argparse.Namespace) -> int:
    _settle_stdout()
    if arguments.verbose:
        say_traceback(error)
    for text in (line, *getattr(error, "__notes__", ())):
        say(text)
    return error.exit_status if isinstance(error, DeltaMaintenanceError) else _FAILED


def _settle_stdout() -> None:
    """Flushes buffered output, or discards it: otherwise the interpreter would fail at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(words: Sequence[str]) -> _MainParser:
    """Returns the parser for this command line: with its first verb only, or else with all
    verbs.
    """
    parser = _MainParser(prog="delta-maintenance")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_help_options()
    subparsers = parser.add_subparsers(parser_class=ArgumentParser, metavar="VERB", required=True)
    parser.verbs = subparsers.choices
    requested_verb = words[0] if words else ""
    if requested_verb in (*_READING, *_TABLES):
        _add_verbs(subparsers, (requested_verb,))
    elif requested_verb in BUILT_IN:
        operation_verb.add_parser(subparsers, find(requested_verb))
    else:
        _add_verbs(subparsers, _READING)
        for record in operations():
            operation_verb.add_parser(subparsers, record)
        _add_verbs(subparsers, _TABLES)
    for verb_parser in subparsers.choices.values():
        verb_parser.add_common_options()
    return parser


class _MainParser(ArgumentParser):
    """The parser of the command, whose help is a screen with all verbs."""

    verbs: Mapping[str, ArgumentParser]

    def format_help(self, *, everything: bool = False) -> str:
        lines = ["usage: delta-maintenance VERB TABLE [options]"]
        for purpose in get_args(Purpose):
            verbs = ((name, verb) for name, verb in self.verbs.items() if verb.purpose == purpose)
            for number, (name, verb) in enumerate(verbs):
                group = "" if number else purpose
                lines.append(f"{group:<8}{name:<18}{verb.summary}".rstrip())
        return "\n".join([*lines, "", _EXIT_STATUSES if everything else _MORE_HELP, ""])


def _add_verbs(subparsers: Verbs, words: Sequence[str]) -> None:
    for module in dict.fromkeys(_MODULES.get(name, name) for name in words):
        import_module(f"delta_maintenance.cli.verbs.{module}").add_parser(subparsers)
