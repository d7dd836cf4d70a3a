"""The options of the command line, from its parsers."""

from __future__ import annotations

import argparse
import re

from delta_maintenance.cli.main import _parser
from docs_site.markdown import code, sentence, table


def verbs(_: str) -> str:
    """Every verb with its summary, linked to its page as from `docs/`."""
    rows = [
        (f"[`{action.dest}`](reference/cli/{action.dest}.md)", sentence(action.help or ""))
        for action in _subparsers()._choices_actions
    ]
    return table(("verb", "purpose"), rows)


def options(verb: str) -> str:
    """The usage line and the table of arguments of one verb."""
    parser = _subparsers().choices[verb]
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    rows = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                rows.append((_name(action), _meaning(action)))
    return f"```text\n{_wrapped(usage)}\n```\n\n" + table(("argument", "meaning"), rows)


def verb_names() -> list[str]:
    """All verbs, in the order of the help."""
    return list(_subparsers().choices)


def _subparsers() -> argparse._SubParsersAction[argparse.ArgumentParser]:
    for action in _parser([])._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action
    raise LookupError("the command line has no verbs")


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


def _wrapped(usage: str) -> str:
    """A usage line broken between its arguments, at about 90 characters."""
    words = re.findall(r"\[[^\]]*\]+|\S+", usage)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 88:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)
