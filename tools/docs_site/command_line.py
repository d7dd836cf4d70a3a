"""The options of the command line, from its parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import get_args

from delta_maintenance.cli.arguments import ArgumentParser
from delta_maintenance.cli.main import _parser
from delta_maintenance.operations.core.operation import Purpose
from docs_site.markdown import code, sentence, table


def verbs(_: str) -> str:
    """Every verb by its purpose, linked to its description as from `docs/reference/`."""
    rows = [
        (purpose, f"[`{name}`](cli/{name}.md)", sentence(_verb_parsers()[name].summary))
        for purpose, names in verbs_by_purpose().items()
        for name in names
    ]
    return table(("purpose", "verb", "effect"), rows)


def page(purpose: str) -> str:
    """The page of the verbs of one purpose, which includes the description of each."""
    names = verbs_by_purpose()[purpose]
    rows = [
        (f"[`{name}`](../cli/{name}.md)", sentence(_verb_parsers()[name].summary)) for name in names
    ]
    sections = "\n\n".join(f"<!-- include: ../cli/{name}.md -->" for name in names)
    head = (
        f"# Commands: {purpose}\n\n[The command line](../command-line.md) describes what all share."
    )
    return f"{head}\n\n{table(('verb', 'effect'), rows)}\n{sections}\n"


def verbs_by_purpose() -> dict[str, list[str]]:
    """The names of the verbs of each purpose, in the order of the help."""
    return {
        purpose: [name for name, verb in _verb_parsers().items() if verb.purpose == purpose]
        for purpose in get_args(Purpose)
    }


def options(verb: str) -> str:
    """The usage line and the table of arguments of one verb."""
    parser = _verb_parsers()[verb]
    rows = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                rows.append((_name(action), _meaning(action)))
    usage = parser.format_usage().removeprefix("usage: ")
    return f"```text\n{usage}```\n\n" + table(("argument", "meaning"), rows)


def verb_names() -> list[str]:
    """All verbs, in the order of the help."""
    return list(_verb_parsers())


def _verb_parsers() -> Mapping[str, ArgumentParser]:
    return _parser([]).verbs


def _name(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        value = action.metavar if isinstance(action.metavar, str) else ""
        if not value and action.choices is not None:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        value = value or action.dest.upper()
    if not action.option_strings:
        return code(value)
    names = [f"{name} {value}".strip() for name in action.option_strings]
    return ", ".join(code(name) for name in names)


def _meaning(action: argparse.Action) -> str:
    meaning = sentence(re.sub(r"%\(\w+\)s|%%", "%", action.help or ""))
    if action.required and action.option_strings:
        meaning += " Required."
    return meaning
