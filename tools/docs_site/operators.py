"""Airflow's operators, sensors and triggers, from their source or the records of operations.

The modules are those that the provider announces to Airflow. Airflow itself is not imported: that
would take longer than the rest of the build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import griffe

from delta_maintenance.operations.core.registry import BUILT_IN, find
from delta_maintenance_airflow.operators.descriptions import OperatorDescription, describe
from delta_maintenance_airflow.provider_info import get_provider_info
from docs_site import source
from docs_site.markdown import code, sentence, table

_GENERATED = "delta_maintenance_airflow.operators"
"""The package of the operators that are made from the records."""


def announced(kind: str) -> str:
    """The classes of one kind (`operators`, `sensors`, `triggers`, `hooks`)."""
    parts = []
    for module in announced_modules(kind):
        if module == _GENERATED:
            parts += [_generated(describe(find(name))) for name in sorted(BUILT_IN)]
            continue
        for found in source.classes(module):
            if found.name.startswith("Delta") and found.parent and found.parent.path == module:
                parts.append(_class(found))
    return "\n".join(parts)


def announced_modules(kind: str) -> list[str]:
    """The modules of that kind that the provider announces to Airflow."""
    return [name for entry in get_provider_info()[kind] for name in entry["python-modules"]]


def configuration(_: str) -> str:
    """The options of `[delta_maintenance]` in Airflow's configuration."""
    options = get_provider_info()["config"]["delta_maintenance"]["options"]
    rows = [
        (code(name), sentence(option["description"]), code(str(option["example"] or "")))
        for name, option in options.items()
    ]
    return table(("option", "meaning", "example"), rows)


def connection(_: str) -> str:
    """The fields of the connection type `delta`."""
    kind = get_provider_info()["connection-types"][0]
    rows = [
        (code(name), field.get("label", ""), sentence(field.get("description", "")))
        for name, field in kind["conn-fields"].items()
    ]
    return table(("key in Extra", "label in the form", "meaning"), rows)


def _generated(description: OperatorDescription) -> str:
    """A class that is made from the record of an operation."""
    bases = [base for name in description.bases for base in _lineage(_base(name))]
    defaults = _defaults(bases)
    for field in description.subjects:
        defaults[field.name] = "required" if field.is_required else code("None")
    return _entry(description.name, _GENERATED, description.docstring, bases, defaults)


def _class(found: griffe.Class) -> str:
    module = found.path.rsplit(".", 1)[0]
    lineage = _lineage(found)
    return _entry(found.name, module, source.text(found), lineage, _defaults(lineage))


def _entry(
    name: str,
    module: str,
    docstring: str,
    lineage: Sequence[griffe.Class],
    defaults: Mapping[str, str],
) -> str:
    described: dict[str, str] = {}
    for text in [*map(source.text, lineage), docstring]:
        described |= {name: " ".join(meaning.split()) for name, meaning in _PARAM.findall(text)}
    rows = []
    for argument, default in defaults.items():
        meaning = described.get(argument, "")
        templated = "yes" if "(templated)" in meaning else ""
        meaning = sentence(meaning.replace("(templated)", ""))
        rows.append((code(argument), default, templated, meaning))
    body = _PARAM.sub("", docstring).strip()
    arguments = table(("argument", "default", "templated", "meaning"), rows) if rows else ""
    return f"### `{name}`\n\n`{module}`\n\n{body}\n\n{arguments}"


def _base(name: str) -> griffe.Class:
    """A base class of the generated operators."""
    (found,) = (
        each
        for module in ("base", "spark_base")
        for each in source.classes(f"{_GENERATED}.{module}")
        if each.name == name
    )
    return found


def _lineage(found: griffe.Class) -> list[griffe.Class]:
    """A class after its bases in this distribution."""
    return [*reversed(found.mro()), found]


def _defaults(lineage: Sequence[griffe.Class]) -> dict[str, str]:
    """The keyword parameters of these classes, with their defaults."""
    defaults: dict[str, str] = {}
    for owner in lineage:
        init = owner.members.get("__init__")
        for each in init.parameters if isinstance(init, griffe.Function) else ():
            if each.kind is not griffe.ParameterKind.var_keyword and each.name != "self":
                required = each.default is None
                defaults[each.name] = "required" if required else code(str(each.default))
    return defaults


# From `:param NAME:` to the next one, or to the end of the paragraph.
_PARAM = re.compile(r"^:param (\w+):(.*?)(?=^:param |\n\n|\Z)", re.MULTILINE | re.DOTALL)
