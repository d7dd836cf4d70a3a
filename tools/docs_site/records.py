"""The JSON documents, from their dataclasses."""

from __future__ import annotations

import griffe

from delta_maintenance.operations.core.flags import flag_fields
from delta_maintenance.operations.core.operation import load
from docs_site import source
from docs_site.markdown import code, table

_ORDER = ("Options", "Plan", "Result")


def documents(package: str) -> str:
    """A table of fields for every record that a package defines.

    Options, Plan and Result come first, then the records inside them.
    """
    records = source.classes(package, base="Record")
    records.sort(key=lambda record: _rank(record.name))
    return "\n".join(_record(record) for record in records)


def operations(_: str) -> str:
    """The records of every operation, one section each."""
    package = source.find("delta_maintenance.operations")
    assert isinstance(package, griffe.Module)
    parts = []
    for name, module in sorted(package.modules.items()):
        if name != "core" and source.classes(module.path, base="Record"):
            parts.append(f"## `{name.replace('_', '-')}`\n\n{documents(module.path)}")
    return "\n".join(parts)


def _rank(name: str) -> int:
    return next((at for at, end in enumerate(_ORDER) if name.endswith(end)), len(_ORDER))


def _record(record: griffe.Class) -> str:
    rows = []
    # The text of a field is declared once, in its flag.
    flag_texts = {
        field.name: field.flag.description
        for field in flag_fields(load(f"{record.module.path}:{record.name}"))
    }
    fields: dict[str, griffe.Attribute] = {}
    for owner in [*reversed(record.mro()), record]:
        for name, member in owner.members.items():
            if isinstance(member, griffe.Attribute) and not name.startswith("_"):
                fields[name] = member
    for name, field in fields.items():
        if field.annotation is None or "property" in field.labels:
            continue
        if str(field.annotation).startswith("ClassVar"):
            continue
        default = "required" if field.value is None else code(str(field.value))
        meaning = " ".join(filter(None, (flag_texts.get(name), source.text(field))))
        rows.append((code(name), code(source.annotation(field)), default, meaning))
    return f"### `{record.name}`\n\n{source.text(record)}\n\n" + table(
        ("key", "type", "default", "meaning"), rows
    )
