"""The XCom value of a task: the facts of a Plan or a Result, flat and small.

XCom values are stored in Airflow's database and shown on its pages, so their size does not depend
on the table: lists without a bound are in the log or in a report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT = 8_000
"""The maximum number of characters of the JSON."""
_SHOWN = 10


def flat(document: Mapping[str, Any], *, limit: int = LIMIT) -> dict[str, Any]:
    """Returns the facts of a JSON object: strings, numbers, flags, and lists of strings.

    The name of a field of a nested object consists of both names, such as
    `protocol_after_min_writer_version`. A list is reduced to its first ten items, with objects as
    one line of text, and `num_NAME` contains the number of all items if some are omitted. If the
    result is longer than the limit, the longest values are truncated.
    """
    facts = dict(_facts(document))
    while len(json.dumps(facts)) > limit:
        longest = max(facts, key=lambda name: len(json.dumps(facts[name])))
        shortened = _shortened(facts[longest])
        if shortened is None:
            del facts[longest]
        else:
            facts[longest] = shortened
    return facts


def _facts(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{prefix}{name}_")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", [_text(item) for item in value[:_SHOWN]]
            if len(value) > _SHOWN:
                yield f"{prefix}num_{name}", len(value)
        else:
            yield f"{prefix}{name}", value


def _text(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    facts = {name: value for name, value in item.items() if value not in (None, [], {})}
    return ", ".join(
        f"{name}: {value}" for name, value in facts.items() if not isinstance(value, list | dict)
    )


def _shortened(value: Any) -> Any | None:
    """Returns a shorter value; None if it cannot be shortened."""
    match value:
        case str() if len(value) > 1:
            return f"{value[: len(value) // 2].removesuffix('…')}…"
        case [*items] if items:
            cut = [_shortened(item) if len(item) > _LINE else item for item in items]
            return cut if cut != items else items[: len(items) // 2]
        case _:
            return None


_LINE = 200
"""The number of characters to which items of lists may be truncated while other items are
longer.
"""
