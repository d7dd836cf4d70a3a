"""Table properties, table features and the clients that support them, from the library."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from delta_maintenance.protocol.changes.client_support import CLIENTS, Client
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


def clients(access: str) -> str:
    """The clients that read, or that write, tables with each feature that any of them supports."""
    others = [client for client in CLIENTS if not client.name.startswith(FAMILIES)]
    rows = []
    for feature in sorted(FEATURES, key=lambda feature: feature.name.lower()):
        supporters = [client for client in CLIENTS if feature.name in _features(client, access)]
        if not supporters or (access == "reads" and feature.kind is FeatureKind.WRITER):
            continue
        since = [_first_release(family, supporters) for family in FAMILIES]
        marks = [_mark(client, feature.name, access) for client in others]
        rows.append((code(feature.name), *since, *marks))
    return table(("table feature", *FAMILIES, *(client.name for client in others)), rows)


def _features(client: Client, access: str) -> frozenset[str]:
    return client.reads if access == "reads" else client.writes


def _first_release(family: str, supporters: list[Client]) -> str:
    releases = [client.name for client in supporters if client.name.startswith(family)]
    return releases[0].removeprefix(family).split(" to ")[0].strip() if releases else "not known"


def _mark(client: Client, feature: str, access: str) -> str:
    if feature in _features(client, access):
        return "yes"
    return "not known" if feature in client.unknown else "no"


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        days, hours = value.days, value.seconds // 3600
        return f"interval {days * 24 + hours} hours" if days < 2 else f"interval {days} days"
    return str(value)
