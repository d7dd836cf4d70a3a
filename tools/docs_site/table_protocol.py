"""Table properties and table features, from the tables of the library."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from delta_maintenance.protocol.changes.property_rules import RULES
from delta_maintenance.protocol.features.properties import _PROPERTIES, TableProperties
from delta_maintenance.protocol.features.registry import FEATURES, Operation
from docs_site.markdown import code, sentence, table


def properties(_: str) -> str:
    """Every property that `set-properties` knows."""
    unset = TableProperties()
    defaults = {key: getattr(unset, field) for field, (key, _parse) in _PROPERTIES.items()}
    rows = []
    for rule in sorted(RULES, key=lambda rule: rule.name.lower()):
        notes = ""
        if rule.managed_by is not None:
            notes = f"Only {rule.managed_by} sets it; `set-properties` refuses it."
        elif rule.instead is not None:
            notes = f"`set-properties` refuses it: {sentence(rule.instead).lower()}"
        shown = _default(defaults.get(rule.name))
        rows.append((code(rule.name), code(shown), code(rule.feature or ""), notes))
    return table(("property", "default", "activates the table feature", "notes"), rows)


def features(_: str) -> str:
    """Every table feature, and the kinds of operation that run on a table with it."""
    kinds = list(Operation)
    rows = []
    for feature in sorted(FEATURES, key=lambda feature: feature.name.lower()):
        marks = ["yes" if kind in feature.operations else "no" for kind in kinds]
        rows.append((code(feature.name), feature.kind.value, *marks, sentence(feature.note)))
    return table(("table feature", "kind", *(kind.value for kind in kinds), "note"), rows)


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        days, hours = value.days, value.seconds // 3600
        return f"interval {days * 24 + hours} hours" if days < 2 else f"interval {days} days"
    return str(value)
