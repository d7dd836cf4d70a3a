"""The keys of a policy file, from its JSON schema."""

from __future__ import annotations

import json
from typing import Any

from docs_site.markdown import code, sentence, table

_HEAD = """# Policy file

<!-- Written by tools/policy_schema.py. -->

Every key of a policy file. The guide to [policies](../guides/policies.md) explains how the keys
work together. Editors that support JSON Schema use [policy.schema.json](../policy.schema.json) to
complete and check the file.
"""


def page(schema: dict[str, Any]) -> str:
    """A table for the document and for each object inside it, in Markdown."""
    parts = [_HEAD, f"## The document\n\n{_object(schema)}"]
    for name, definition in sorted(schema["$defs"].items()):
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
    # The defaults inside an object are in the table of the object.
    default = field.get("default")
    return "" if default is None or isinstance(default, dict) else code(json.dumps(default))
