"""Definitions that all operations share.

Orchestrators import these names from here. They are loaded on first use, so that parsing a Dag does
not load them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.core.context import RunContext
    from delta_maintenance.operations.core.facts import count_text, fact_lines, shown, size_text
    from delta_maintenance.operations.core.logged_progress import LoggedProgress
    from delta_maintenance.operations.core.registry import find, known

__all__ = [
    "LoggedProgress",
    "RunContext",
    "count_text",
    "fact_lines",
    "find",
    "known",
    "shown",
    "size_text",
]

__getattr__ = lazy_names(
    __name__,
    {
        "LoggedProgress": "logged_progress",
        "RunContext": "context",
        "count_text": "facts",
        "fact_lines": "facts",
        "find": "registry",
        "known": "registry",
        "shown": "facts",
        "size_text": "facts",
    },
)
