"""Table properties, table features and the clients that support them, from the library."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from delta_maintenance.protocol.changes.client_support import CLIENTS
from delta_maintenance.protocol.changes.property_rules import RULES
from delta_maintenance.protocol.features.properties import _PROPERTIES, TableProperties
from delta_maintenance.protocol.features.registry import FEATURES, FeatureKind, Operation
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


FAMILIES = ("Delta Spark", "Databricks Runtime")
"""Clients of which the library knows several releases, the oldest first."""

ARROW = ", to_pyarrow_table and to_pandas"
"""How delta-rs reads through Arrow data sets; it writes in one way."""


def clients(_: str) -> str:
    """The clients that read and that write tables with each feature that any of them supports."""
    rows = []
    # Features of readers are first: only they lock readers out.
    for feature in sorted(FEATURES, key=lambda feature: (feature.kind.value, feature.name.lower())):
        readers = [client.name for client in CLIENTS if feature.name in client.reads]
        writers = [
            client.name
            for client in CLIENTS
            if feature.name in client.writes and not client.name.endswith(ARROW)
        ]
        if readers or writers:
            is_for_writers = feature.kind is FeatureKind.WRITER
            read_by = "all" if is_for_writers else _first_releases(readers)
            rows.append((code(feature.name), read_by, _first_releases(writers)))
    return table(("table feature", "read by", "written by"), rows)


def _first_releases(names: list[str]) -> str:
    """The clients, of which those with several releases are named once, by the oldest."""
    families: dict[str, str] = {}
    for name in names:
        family = next((family for family in FAMILIES if name.startswith(family)), name)
        release = name.removesuffix(ARROW).split(" to ")[0].split(" (")[0]
        families.setdefault(
            family, release + (" (Arrow data sets)" if name.endswith(ARROW) else "")
        )
    return "; ".join(families.values())


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        days, hours = value.days, value.seconds // 3600
        return f"interval {days * 24 + hours} hours" if days < 2 else f"interval {days} days"
    return str(value)
