"""Reading a YAML document into a model, with errors that name line and column."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from delta_maintenance.errors import InvalidRequestError, closest

M = TypeVar("M", bound=BaseModel)
_SHORT = 4


def read_document(
    model: type[M], path: str | os.PathLike[str], *, environment: Mapping[str, str]
) -> M:
    """The model in a YAML file. `environment` is passed to the validators as their context.

    Raises `InvalidRequestError`, which names the file, the line, the key, the problem and the
    remedy of the first mistake; its notes are the other ones, in the order of the lines.
    """
    name = os.fspath(path)
    invalid = partial(InvalidRequestError, file=name)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise invalid(f"the policy cannot be read: {reason}", remedy="correct its path") from None
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise invalid(
            f"{where}{error.problem or error.context}", remedy="correct the YAML"
        ) from None
    except yaml.YAMLError as error:
        raise invalid(f"the file is not YAML: {error}", remedy="correct it") from None
    try:
        return model.model_validate(values, context={"environment": environment})
    except ValidationError as error:
        problems = _problems(error, text, model)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        failure = invalid(f"{problems[0]}{more}", remedy=None)
        for problem in problems[1:]:
            failure.add_note(f"file {name}: {problem}")
        raise failure from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe, fast if libyaml is available, and strict about repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = key.value
            if name in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} occurs twice", key.start_mark
                )
            keys.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _problems(error: ValidationError, text: str, model: type[BaseModel]) -> list[str]:
    """Returns a line for each mistake, in the order of the file."""
    root, schema = yaml.compose(text, Loader=_Loader), model.model_json_schema()
    problems = {
        (_line(root, mistake["loc"]), f"{_option(mistake['loc'])}{_message(mistake, schema)}")
        for mistake in error.errors(include_url=False)
    }
    return [f"line {line}: {problem}" for line, problem in sorted(problems)]


def _message(problem: ErrorDetails, schema: dict[str, Any]) -> str:
    if problem["type"] == "extra_forbidden":
        *place, key = problem["loc"]
        known_keys = sorted(_known_keys(schema, place))
        # Of short names, such as `url` for `uri`, fewer characters are equal.
        meant = closest(str(key), known_keys, likeness=0.7 if len(str(key)) > _SHORT else 0.6)
        remedy = "correct its spelling." if meant is None else f"did you mean {meant}?"
        keys = f" Valid keys: {', '.join(known_keys)}" if known_keys else ""
        return f"unknown key; {remedy}{keys}"
    if problem["type"] == "literal_error":
        names = re.findall("'([^']*)'", str(problem.get("ctx", {}).get("expected")))
        meant = closest(str(problem["input"]), names)
        if meant is not None:
            return f"unknown value; did you mean {meant}? Valid values: {', '.join(names)}"
    if problem["type"] == "missing":
        return "the key is missing; add it"
    if problem["type"] in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
        return "a mapping is required here; write keys with values"
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    return f"{problem['msg'][:1].lower()}{problem['msg'][1:]}; correct this value"


def _known_keys(schema: dict[str, Any], place: Sequence[int | str]) -> set[str]:
    """Returns the keys that a mapping may have at a place in a document."""

    def alternatives(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        inner = [found for each in node.get("anyOf", ()) for found in alternatives(each)]
        return [node, *inner]

    nodes = alternatives(schema)
    for part in place:
        below = (
            node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
            for node in nodes
        )
        nodes = [found for each in below if each is not None for found in alternatives(each)]
    return {key for node in nodes for key in node.get("properties", ())}


def _option(location: tuple[int | str, ...]) -> str:
    text = ""
    for key in location:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return f"{text}: " if text else ""


def _line(root: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Returns the line of a value in the file; for a missing value, the line where it belongs."""
    node = root
    line = 0 if node is None else node.start_mark.line
    for key in location:
        if isinstance(node, yaml.MappingNode):
            node_pair = next(((k, v) for k, v in node.value if k.value == key), None)
            if node_pair is None:
                break
            line, node = node_pair[0].start_mark.line, node_pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            line = node.start_mark.line
        else:
            break
    return line + 1
