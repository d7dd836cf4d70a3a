"""The XCom value of a task: the facts of a Plan or a Result, flat and small.

XCom values stand in Airflow's database and are drawn in its pages, so that nothing grows with the
table: what has no bound is in the log or in a report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT = 8_000
"""Characters of JSON at most."""
_SHOWN = 10


def flat(document: Mapping[str, Any], *, limit: int = LIMIT) -> dict[str, Any]:
    """The facts of a JSON object: texts, numbers, flags, and lists of texts.

    A field of an object within has both names, `protocol_after_min_writer_version`. Of a list there
    are the first ten, an object among them as one line of text, and `num_NAME` says how many there
    are where these are not all. Where all of it is longer than the limit, the longest values lose
    their ends.
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
    """A value without its end; None where nothing is left to take."""
    match value:
        case str() if len(value) > 1:
            return f"{value[: len(value) // 2].removesuffix('…')}…"
        case [*items] if items:
            cut = [_shortened(item) if len(item) > _LINE else item for item in items]
            return cut if cut != items else items[: len(items) // 2]
        case _:
            return None


_LINE = 200
"""Characters that the lines of a list keep as long as there are longer ones."""
