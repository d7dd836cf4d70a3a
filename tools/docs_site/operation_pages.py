"""The page of an operation that has none of its own in `docs/`, from its record."""

from __future__ import annotations

from delta_maintenance.operations.core.operation import Effects
from delta_maintenance.operations.core.registry import AnyOperation, known
from docs_site.markdown import code, sentence, table

_EFFECTS = {
    "commits": "adds versions",
    "adds_files": "adds files of the log without a version",
    "deletes": "deletes files",
    "changes_table": "changes the protocol, properties or rows for good",
}


def page(verb: str) -> str | None:
    """The page, with a directive for the options; None for a verb that is no operation."""
    record = known(verb)
    if record is None:
        return None
    rows = [
        ("effects", _effects(record.effects)),
        ("engines", ", ".join(map(code, record.engines))),
        ("key in a policy", code(record.policy.key) if record.policy is not None else "none"),
        ("report", sentence(record.report or "none")),
    ]
    return "\n\n".join(
        (
            f"# {code(record.name)}",
            sentence(f"{record.description} {record.prints}"),
            table(("property", "value"), rows),
            f"## Result\n\n{_statuses(record)}",
            f"## Options\n\n<!-- generated: cli-options {record.name} -->\n",
        )
    )


def _effects(effects: Effects) -> str:
    found = [text for name, text in _EFFECTS.items() if getattr(effects, name)]
    return sentence(", ".join(found) or "none, it only reads")


def _statuses(record: AnyOperation) -> str:
    return table(
        ("status", "outcome", "exit status"),
        [
            (code(status), code(outcome.value), str(outcome.exit_status))
            for status, outcome in record.outcomes.items()
        ],
    )
