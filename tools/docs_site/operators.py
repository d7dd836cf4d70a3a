"""Airflow's operators, sensors and triggers, from their source.

The modules are those that the provider announces to Airflow. Airflow itself is not imported: that
would take longer than the rest of the build.
"""

from __future__ import annotations

import re

import griffe

from delta_maintenance_airflow.provider_info import get_provider_info
from docs_site import source
from docs_site.markdown import code, sentence, table


def announced(kind: str) -> str:
    """The classes of one kind (`operators`, `sensors`, `triggers`, `hooks`)."""
    parts = []
    for module in announced_modules(kind):
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
    """The fields of the connection type."""
    (kind,) = get_provider_info()["connection-types"]
    rows = [
        (code(name), field.get("label", ""), sentence(field.get("description", "")))
        for name, field in kind["conn-fields"].items()
    ]
    return table(("key in Extra", "label in the form", "meaning"), rows)


def _class(found: griffe.Class) -> str:
    body, described = _docstring(found)
    rows = []
    for owner in found.mro():
        described = _docstring(owner)[1] | described
    for name, parameter in _parameters(found).items():
        meaning = described.get(name, "")
        templated = "yes" if "(templated)" in meaning else ""
        meaning = sentence(meaning.replace("(templated)", ""))
        default = "required" if parameter.default is None else code(str(parameter.default))
        rows.append((code(name), default, templated, meaning))
    module = found.path.rsplit(".", 1)[0]
    arguments = table(("argument", "default", "templated", "meaning"), rows) if rows else ""
    return f"### `{found.name}`\n\n`{module}`\n\n{body}\n\n{arguments}"


def _parameters(found: griffe.Class) -> dict[str, griffe.Parameter]:
    """The keyword parameters of a class and of its bases in this distribution."""
    parameters: dict[str, griffe.Parameter] = {}
    for owner in [*reversed(found.mro()), found]:
        init = owner.members.get("__init__")
        if isinstance(init, griffe.Function):
            for parameter in init.parameters:
                kind = parameter.kind
                if kind is not griffe.ParameterKind.var_keyword and parameter.name != "self":
                    parameters[parameter.name] = parameter
    return parameters


def _docstring(found: griffe.Class) -> tuple[str, dict[str, str]]:
    """The text above the parameters, and what it says about each of them."""
    described = {name: " ".join(text.split()) for name, text in _PARAM.findall(source.text(found))}
    return _PARAM.sub("", source.text(found)).strip(), described


# From `:param NAME:` to the next one, or to the end of the paragraph.
_PARAM = re.compile(r"^:param (\w+):(.*?)(?=^:param |\n\n|\Z)", re.MULTILINE | re.DOTALL)
