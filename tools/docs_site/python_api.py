"""Functions and classes of the Python API, from their source."""

from __future__ import annotations

from collections.abc import Sequence

import griffe

from delta_maintenance.operations.core.registry import BUILT_IN
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
        # A class that is defined elsewhere than it is imported from is named by its import.
        module = path.rpartition(".")[0]
        return _class(found, hidden.split(","), module if module != found.module.path else None)
    assert isinstance(found, griffe.Module), path
    parts = [source.text(found) + "\n"]
    for name in ("plan", "apply"):
        if name in found.members:
            function = source.find(f"{path}.{name}")
            if isinstance(function, griffe.Attribute):
                # `plan = _VERB.plan`, the method of a frame that several operations share.
                verb = source.find(f"{function.path.removesuffix(name)}_VERB")
                assert isinstance(verb, griffe.Attribute) and isinstance(
                    verb.value, griffe.ExprCall
                )
                function = source.find(f"{verb.value.function.canonical_path}.{name}")
            assert isinstance(function, griffe.Function), path
            parts.append(_function(function, level=4, name=f"{path.rsplit('.', 1)[1]}.{name}"))
    return "\n".join(parts)


def operations(_: str) -> str:
    """`plan` and `apply` of every built-in operation, one section each."""
    modules = [name.replace("-", "_") for name in BUILT_IN]
    return "\n".join(
        f"### {name}\n\n{member(f'delta_maintenance.operations.{name}')}" for name in modules
    )


def _class(found: griffe.Class, hidden: Sequence[str], module: str | None) -> str:
    shown = {
        name: member
        for name, member in found.all_members.items()
        if not name.startswith("_") and name not in hidden
    }
    place = "" if module is None else f"Import it from `{module}`.\n\n"
    parts = [f"### `{found.name}`\n\n{place}{source.text(found)}\n"]
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
