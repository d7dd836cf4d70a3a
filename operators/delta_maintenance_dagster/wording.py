"""Converts messages of the library to the terms of Dagster."""

from __future__ import annotations

import re

# Not within a word, such as the path of a table.
_FLAGS = re.compile(
    r"(?P<before>\bwith |\buse )?(?<![^\s(`])(?P<flags>(?:--[a-z][a-z0-9-]*(?![\w./])[ ,]*)+)"
)
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")


def in_dagster(message: str) -> str:
    """Replaces flags of the command line in a message by options of the launchpad.

    `run fsck --repair` becomes `run fsck with the option repair`.
    """
    return _FLAGS.sub(_options, message)


def _options(found: re.Match[str]) -> str:
    names = [name.replace("-", "_") for name in _FLAG.findall(found["flags"])]
    before = found["before"] or "with "
    kind = "option" if len(names) == 1 else "options"
    after = found["flags"][len(found["flags"].rstrip(" ,")) :]
    return f"{before}the {kind} {', '.join(names)}{after}"
