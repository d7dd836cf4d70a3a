"""Dagster's component, resources and models, from their source.

Dagster is not imported: the descriptions are read from the calls of `Field` and `dg.Resolver`.
"""

from __future__ import annotations

import ast

import griffe

from docs_site import source
from docs_site.markdown import code, sentence, table


def fields(path: str) -> str:
    """The docstring and the fields of one class."""
    found = source.find(path)
    assert isinstance(found, griffe.Class), path
    rows = []
    for name, member in found.members.items():
        if not isinstance(member, griffe.Attribute) or "property" in member.labels:
            continue
        if not name.startswith(("_", "model_config")):
            rows.append((code(name), code(_default(member)), sentence(_meaning(member))))
    text = source.text(found).partition(".. code-block::")[0].strip()
    return f"### `{found.name}`\n\n{text}\n\n" + table(("field", "default", "meaning"), rows)


def _default(member: griffe.Attribute) -> str:
    given = _keywords(member.value)
    if "default_factory" in given:
        return {"dict": "{}", "list": "[]"}.get(ast.unparse(given["default_factory"]), "")
    if "default" in given:
        return ast.unparse(given["default"])
    # Another call is a rule with its own defaults.
    return "" if member.value is None or "(" in str(member.value) else str(member.value)


def _meaning(member: griffe.Attribute) -> str:
    for given in (_keywords(member.value), _keywords(member.annotation)):
        if "description" in given:
            return _text(given["description"])
    return source.text(member)


def _text(node: ast.expr) -> str:
    """A text; dots stand for values inside it that are computed."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def _keywords(expression: griffe.Expr | str | None) -> dict[str, ast.expr]:
    """The keyword arguments of every call inside an expression."""
    if expression is None:
        return {}
    calls = [node for node in ast.walk(ast.parse(str(expression))) if isinstance(node, ast.Call)]
    return {word.arg: word.value for call in calls for word in call.keywords if word.arg}
