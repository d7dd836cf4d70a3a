"""Arguments that several verbs share, and the conversion of their text to values.

This module must not load pyarrow, pydantic or rich, so that `--help` responds at once.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from delta_maintenance.address import is_catalog_name
from delta_maintenance.errors import closest
from delta_maintenance.limits import LOG_MEMORY_VARIABLE
from delta_maintenance.redaction import redact

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot
    from delta_maintenance.table.read.table import Table

_TABLE_HELP = (
    "path or URI of the table's root: a local path, file:, s3:, gs:, abfss:, az:, hdfs: or "
    "webhdfs:; or its name in a catalog, such as uc://main.sales.orders"
)
_LOG_MEMORY_HELP = (
    "memory that one file of a log may take while it is read, such as 6GiB or 512MiB; by default "
    f"{LOG_MEMORY_VARIABLE} of the environment, or else 4GiB"
)
_STORAGE_HELP = """\
an option of the table's store, such as AWS_ENDPOINT_URL=http://localhost:9000; repeatable. Other
users of the machine can read the command line, so pass secrets in the environment instead: S3 reads
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE and AWS_REGION, as well as
~/.aws and instance roles; Google and Azure read their usual variables"""


_WIDEST_EXAMPLE = 74


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose options cannot be abbreviated.

    An unambiguous abbreviation could become ambiguous when another option is added.
    """

    json_help = ""
    """The help of the common option `--json`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **settings, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def add_common_options(self) -> None:
        """Adds the options that all verbs have. Called last, so that help begins with the
        verb's own.
        """
        common = self.add_argument_group("common options")
        common.add_argument(
            "--storage-option",
            dest="storage_options",
            metavar="K=V",
            action="append",
            default=[],
            type=key_value,
            help=_STORAGE_HELP.replace("\n", " "),
        )
        common.add_argument("--log-memory", metavar="SIZE", help=_LOG_MEMORY_HELP)
        common.add_argument("--json", action="store_true", help=self.json_help)
        common.add_argument(
            "-v", "--verbose", action="store_true", help="print more on stderr, with tracebacks"
        )
        common.add_argument("-h", "--help", action="help", help="print this help")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Ends with an error about words that are neither options nor arguments of the verb."""
        unknown = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if unknown is None:
            self.error(f"too many arguments: {' '.join(words)}")
        meant = closest(unknown, self._option_string_actions, likeness=0.6)
        self.error(f"there is no option {unknown}" + (f"; did you mean {meant}?" if meant else ""))

    def error(self, message: str) -> NoReturn:
        # Quoted input must stay on one line.
        line = redact(" ".join(message.split()))
        end = "" if line.endswith("?") else ";"
        self.exit(2, f"delta-maintenance: {line}{end} see '{self.prog} --help'\n")


class Verbs(Protocol):
    """The object to which a verb adds its parser, as `ArgumentParser.add_subparsers` returns it."""

    def add_parser(
        self, name: str, *, help: str, description: str, epilog: str, add_help: bool
    ) -> ArgumentParser:
        """Adds the parser of a new verb."""


def add_verb(
    verbs: Verbs, name: str, *, summary: str, description: str, json_help: str, example: str
) -> ArgumentParser:
    """Adds the parser of one verb; the common options follow the verb's own.

    `example` is a command line without the name of the program.
    """
    parser = verbs.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"example:\n  {_on_lines(example)}",
        add_help=False,
    )
    parser.json_help = json_help
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
        type=_timestamp,
        help="the version that was current at T: ISO 8601 with a zone, such as "
        "2026-01-31T12:00:00Z, or milliseconds since 1970-01-01 UTC",
    )


def add_spark(parser: ArgumentParser) -> None:
    """Adds the options for Spark."""
    spark = parser.add_argument_group(
        "Spark",
        "The job is started with spark-submit, of SPARK_HOME or else of the pyspark that is "
        "installed here.",
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


def _on_lines(example: str) -> str:
    """Returns a command line, continued on further lines as shells do if it is long."""
    lines = ["delta-maintenance"]
    for word in map(shlex.quote, shlex.split(example)):
        if len(lines[-1]) + len(word) > _WIDEST_EXAMPLE:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _timestamp(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdecimal() else text
