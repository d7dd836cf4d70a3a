"""`acknowledge`: state that the failure of a table is known, so that runs do not fail because of
it.
"""

from __future__ import annotations

import argparse
import getpass
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb
from delta_maintenance.cli.output import print_json
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.documents import printable

if TYPE_CHECKING:
    from delta_maintenance.policies.acknowledgements import Acknowledgement
    from delta_maintenance.policies.assessments import AssessmentEntry


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "acknowledge",
        purpose="policy",
        summary="state that the failure of a table is known",
        description=(
            "Acknowledge the failure of a table, or of a pattern that cannot be listed, with a "
            "reason. Runs with the same state then name it apart, do not fail because of it, and "
            "send no alert. Another failure of the table, and the same one after the table was "
            "well, are new."
        ),
        json_help="print the name and the acknowledgement as one JSON document",
        example="acknowledge orders --state state/ --until 7d --reason 'restored on Monday'",
    )
    parser.add_argument(
        "name", metavar="NAME", help="the table or the pattern, as `assess` names it"
    )
    parser.add_argument(
        "--state",
        metavar="URI",
        required=True,
        help="the folder of `assess` and `run`, or that of Airflow's or Dagster's assessments",
    )
    parser.add_argument("--reason", metavar="TEXT", help="why the failure may stay; required")
    parser.add_argument(
        "--until", metavar="T", help="the end: a date such as 2027-01-31, or a duration such as 7d"
    )
    parser.add_argument(
        "--until-changed",
        action="store_true",
        help="end also if the same failure comes from another version of the table; without "
        "--until, this is the only end",
    )
    parser.add_argument(
        "--by", metavar="PERSON", help="who says so, by default the user of this process"
    )
    parser.add_argument(
        "--remove", action="store_true", help="remove the acknowledgement of the table instead"
    )
    # Errors do not refer to a table on the command line.
    parser.set_defaults(table=None, run=run)


def run(arguments: argparse.Namespace) -> int:
    """Stores or removes an acknowledgement."""
    from delta_maintenance.policies.acknowledgements import acknowledge_failure
    from delta_maintenance.policies.assessments import AssessmentStore

    if arguments.remove and (arguments.reason or arguments.until or arguments.until_changed):
        raise InvalidRequestError(
            "--remove takes no reason and no end",
            remedy="leave out --reason, --until and --until-changed",
        )
    now = clock.now()

    def make(entry: AssessmentEntry) -> Acknowledgement | None:
        if arguments.remove:
            return None
        return acknowledge_failure(
            entry.failure,
            name=entry.name,
            reason=arguments.reason or "",
            by=arguments.by or _user(),
            until=arguments.until,
            until_changed=arguments.until_changed,
            now=now,
        )

    state = AssessmentStore(arguments.state, dict(arguments.storage_options))
    try:
        acknowledgement = state.acknowledge(arguments.name, make).acknowledgement
    finally:
        state.close()
    if arguments.json:
        document = acknowledgement.to_json() if acknowledgement is not None else None
        print_json({"name": arguments.name, "acknowledgement": document})
    else:
        text = str(acknowledgement) if acknowledgement is not None else "no longer acknowledged"
        print(f"{printable(arguments.name)}: {printable(text)}")
    return 0


def _user() -> str | None:
    """Returns the user of this process; None for one without a name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
