"""Signatures and docstrings of the packages, read from the source without importing it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[2]


@cache
def _packages() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[ROOT / "plugin", ROOT / "operators"])
    for package in ("delta_maintenance", "delta_maintenance_airflow", "delta_maintenance_dagster"):
        loader.load(package)
    loader.resolve_aliases()
    return loader.modules_collection


def find(path: str) -> griffe.Object:
    """The module, class or function of a dotted path. Raises `KeyError` if there is none."""
    found = _packages()[path]
    return found.final_target if isinstance(found, griffe.Alias) else found


def classes(package: str, *, base: str | None = None) -> list[griffe.Class]:
    """The public classes defined in a package and below it, in the order of their modules.

    `base` is the name of a class from which each of them has to be derived.
    """
    found: list[griffe.Class] = []
    module = find(package)
    assert isinstance(module, griffe.Module)
    for member in module.members.values():
        if member.is_alias or member.name.startswith("_"):
            continue
        if isinstance(member, griffe.Module):
            found += classes(member.path, base=base)
        elif isinstance(member, griffe.Class) and (base is None or base in bases(member)):
            found.append(member)
    return found


def bases(member: griffe.Class) -> list[str]:
    """The names of all classes from which this one is derived, those outside included."""
    ancestors = [member, *member.mro()]
    return [str(base).rsplit(".", 1)[-1] for ancestor in ancestors for base in ancestor.bases]


def text(member: griffe.Object) -> str:
    """The docstring; empty if there is none."""
    return "" if member.docstring is None else member.docstring.value.strip()


def signature(function: griffe.Function, name: str | None = None) -> str:
    """A signature as it could stand in code, one parameter a line where it is long.

    `self` and `cls` are left out.
    """
    parameters = [p for p in function.parameters if p.name not in ("self", "cls")]
    shown: list[str] = []
    keyword_only = False
    for parameter in parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            if not any(p.kind is griffe.ParameterKind.var_positional for p in parameters):
                shown.append("*")
        stars = (
            {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
                kind, ""
            )
            if kind is not None
            else ""
        )
        piece = f"{stars}{parameter.name}"
        if parameter.annotation is not None:
            piece += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            piece += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
        shown.append(piece)
    returns = "" if function.returns is None else f" -> {function.returns}"
    head = name or function.name
    line = f"{head}({', '.join(shown)}){returns}"
    if len(line) <= 88:
        return line
    return f"{head}(\n" + "".join(f"    {piece},\n" for piece in shown) + f"){returns}"


def annotation(member: griffe.Attribute) -> str:
    """The type of an attribute, with the values of aliases such as `Status` in their place.

    What an annotation says of flags and bounds is left out.
    """
    given = member.annotation
    if isinstance(given, griffe.Expr) and given.canonical_path.startswith(_SHARED_FLAGS):
        shared = find(given.canonical_path)
        given = shared.value if isinstance(shared, griffe.Attribute) else given
    if given is None or isinstance(given, str):
        return str(given or "")
    text = "".join(_expanded(part) for part in given.iterate(flat=True))
    return _ANNOTATED.sub(r"\1", " ".join(text.split()))


_SHARED_FLAGS = "delta_maintenance.operations.core.flags."
# The first argument of `Annotated` holds no more than one level of brackets.
_ANNOTATED = re.compile(r"Annotated\[((?:[^,\[\]]|\[[^\[\]]*\])+),.*\]")


def _expanded(part: str | griffe.Expr) -> str:
    if not isinstance(part, griffe.ExprName):
        return str(part)
    try:
        found = find(part.canonical_path)
    except KeyError:
        return str(part)
    if isinstance(found, griffe.Attribute) and str(found.value).startswith("Literal["):
        return str(found.value)
    return str(part)
