"""The options of the command line, from its parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from delta_maintenance.cli.arguments import ArgumentParser
from delta_maintenance.cli.main import _parser
from docs_site.markdown import code, sentence, table


def verbs(_: str) -> str:
    """Every verb with its summary, linked to its page as from `docs/reference/`."""
    rows = [
        (f"[`{name}`](cli/{name}.md)", sentence(parser.summary))
        for name, parser in _verb_parsers().items()
    ]
    return table(("verb", "purpose"), rows)


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
