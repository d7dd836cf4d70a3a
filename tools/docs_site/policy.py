"""The keys of a policy file, from its JSON schema."""

from __future__ import annotations

import json
from typing import Any

from docs_site.markdown import code, sentence, table
from docs_site.source import ROOT


def schema(_: str) -> str:
    """A table for the document and for each object inside it."""
    document = json.loads((ROOT / "docs" / "policy.schema.json").read_text())
    parts = [f"## The document\n\n{_object(document)}"]
    for name, definition in sorted(document["$defs"].items()):
        parts.append(f"## {name}\n\n{_object(definition)}")
    return "\n".join(parts)


def _object(definition: dict[str, Any]) -> str:
    required = definition.get("required", ())
    rows = [
        (
            code(key),
            _type(field),
            "required" if key in required else _default(field),
            sentence(field.get("description", "")),
        )
        for key, field in definition.get("properties", {}).items()
    ]
    head = sentence(definition.get("description", ""))
    return f"{head}\n\n" + table(("key", "type", "default", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return " or ".join(code(json.dumps(value)) for value in field["enum"])
    if "const" in field:
        return code(json.dumps(field["const"]))
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(choice) for choice in field["anyOf"]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _default(field: dict[str, Any]) -> str:
    return code(json.dumps(field["default"])) if field.get("default") is not None else ""
