"""Functions and classes of the Python API, from their source."""

from __future__ import annotations

from collections.abc import Sequence

import griffe

from docs_site import source
from docs_site.markdown import code, table


def member(argument: str) -> str:
    """One function, class or operation: its signature, its docstring and its public members.

    `PATH!NAME,NAME` leaves members of a class out that are not part of the stable API.
    """
    path, _, hidden = argument.partition("!")
    found = source.find(path)
    if isinstance(found, griffe.Function):
        return _function(found, level=3)
    if isinstance(found, griffe.Class):
        members = found.all_members
        for name in hidden.split(",") if hidden else ():
            if name not in members:
                raise KeyError(f"{path} has no member {name}")
        return _class(found, hidden.split(","))
    assert isinstance(found, griffe.Module), path
    parts = [source.text(found) + "\n"]
    for name in ("plan", "apply"):
        if name in found.members:
            function = source.find(f"{path}.{name}")
            assert isinstance(function, griffe.Function), path
            parts.append(_function(function, level=4, name=f"{path.rsplit('.', 1)[1]}.{name}"))
    return "\n".join(parts)


def _class(found: griffe.Class, hidden: Sequence[str]) -> str:
    shown = {
        name: member
        for name, member in found.all_members.items()
        if not name.startswith("_") and name not in hidden
    }
    parts = [f"### `{found.name}`\n\n{_import(found)}\n\n{source.text(found)}\n"]
    attributes = [
        (code(name), code(_annotation(attribute)), source.text(attribute))
        for name, attribute in shown.items()
        if isinstance(attribute, griffe.Attribute)
    ]
    if attributes:
        parts.append(table(("attribute", "type", "meaning"), attributes))
    for name, function in shown.items():
        if isinstance(function, griffe.Function):
            parts.append(_function(function, level=4, name=f"{found.name}.{name}"))
    return "\n".join(parts)


def _function(function: griffe.Function, *, level: int, name: str | None = None) -> str:
    shown = source.signature(function, function.name)
    return (
        f"{'#' * level} `{name or function.name}`\n\n"
        f"```python\n{shown}\n```\n\n{source.text(function)}\n"
    )


def _annotation(attribute: griffe.Attribute) -> str:
    return "" if attribute.annotation is None else str(attribute.annotation)


def _import(found: griffe.Class) -> str:
    return f"`{found.path.rsplit('.', 1)[0]}`"
