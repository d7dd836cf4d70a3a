"""The operations that the form of the manual Dag offers: every installed operation."""

from __future__ import annotations

import json

from delta_maintenance.operations.core.registry import operations


def titles() -> dict[str, str]:
    """Returns the title of each operation by its name, with a warning if it deletes files."""
    return {
        record.name: f"{record.title} (deletes)" if record.effects.deletes else record.title
        for record in operations()
    }


def required_options() -> str:
    """Returns a sentence that names the options without which an operation cannot run."""
    needed = [
        f"`{record.name}` needs `{json.dumps(record.example)}`"
        for record in operations()
        if record.required
    ]
    return f"{', '.join(needed)}." if needed else "No operation needs options."
