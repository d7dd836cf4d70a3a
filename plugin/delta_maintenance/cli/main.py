"""The `delta-maintenance` command: which verb, and how its end becomes an exit status.

stdout carries the result and nothing else; logs, warnings, progress and errors go to stderr.
Exit status: 0 done or nothing to do, 1 failed part-way, 2 usage, 3 refused, 4 conflict, 5 corrupt
or not a Delta table; 130 interrupted, 141 when the reader of stdout went away.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from delta_maintenance import __version__
from delta_maintenance.cli.arguments import ArgumentParser
from delta_maintenance.cli.output import logging_to_stderr, say
from delta_maintenance.cli.process import own_the_process
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.redaction import redact

_FAILED = 1
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""What a shell reports of a program that a closed pipe ended. Not 0: the output is incomplete."""

_VERBS = {
    "inspect": "inspect",
    "files": "files",
    "history": "history",
    "health": "health",
    "checkpoint": "checkpoint",
    "compact-log": "compact_log",
    "clean-log": "clean_log",
    "vacuum": "vacuum",
    "fsck": "fsck",
    "backfill-row-ids": "backfill_row_ids",
    "upgrade-protocol": "upgrade_protocol",
    "set-properties": "set_properties",
    "add-constraint": "add_constraint",
    "drop-feature": "drop_feature",
    "assess": "assess",
    "run": "run",
    "spark-spec": "spark_spec",
    "spark-stage": "spark_spec",
}
"""Each with its module in this package, in the order of the help."""

_EXIT_STATUSES = """\
exit status:
  0  done, also when there was nothing to do
  1  failed part-way
  2  wrong usage: correct the command line
  3  refused: unsupported table feature or unsafe request, nothing was touched
  4  conflict with another writer, retries spent
  5  the table is corrupt or not a Delta table

stdout carries the result alone; warnings, progress and errors go to stderr."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, by default that of the process, and returns its exit status."""
    if argv is None:
        own_the_process()
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser(words).parse_args(words)
    except SystemExit as ended:
        # The parser has had its say: help on stdout, or what is wrong on stderr.
        return ended.code if isinstance(ended.code, int) else _FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks is no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    with logging_to_stderr(verbose=arguments.verbose):
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    try:
        # A verb for many tables tells of those that failed itself, and only says how it ends.
        status: int | None = arguments.run(arguments)
        # Here, where a failure still becomes an exit status, and not when the interpreter ends.
        sys.stdout.flush()
    except DeltaMaintenanceError as error:
        return _failed(error, str(error.located(table=arguments.table)), arguments)
    except KeyboardInterrupt:
        say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        _settle_stdout()
        return _BROKEN_PIPE
    except Exception as error:
        hint = "" if arguments.verbose else "; run again with -v for the details"
        return _failed(error, f"{type(error).__name__}: {error}{hint}", arguments)
    return status or 0


def _failed(error: Exception, line: str, arguments: argparse.Namespace) -> int:
    _settle_stdout()
    if arguments.verbose:
        # Errors below ours may quote the address as it was given.
        sys.stderr.write(redact("".join(traceback.format_exception(error))))
    say(line)
    return error.exit_status if isinstance(error, DeltaMaintenanceError) else _FAILED


def _settle_stdout() -> None:
    """Lets out what is buffered, or gives it up: the interpreter would fail on it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(words: Sequence[str]) -> ArgumentParser:
    """The parser of this command line: with the one verb that it begins with, else with all."""
    parser = ArgumentParser(
        prog="delta-maintenance",
        description="Look into Delta Lake tables and keep them healthy.",
        epilog=_EXIT_STATUSES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    asked = words[0] if words else None
    modules = [_VERBS[asked]] if asked in _VERBS else dict.fromkeys(_VERBS.values())
    for module in modules:
        import_module(f"delta_maintenance.cli.verbs.{module}").add_parser(verbs)
    return parser
