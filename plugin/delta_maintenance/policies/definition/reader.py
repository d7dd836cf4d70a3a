"""Reading a YAML document into a model, with errors that name line and column."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from delta_maintenance.errors import InvalidRequestError, closest

M = TypeVar("M", bound=BaseModel)


def read_document(
    model: type[M], path: str | os.PathLike[str], *, environment: Mapping[str, str]
) -> M:
    """The model in a YAML file. `environment` is passed to the validators as their context.

    Raises `InvalidRequestError`, which names the file, the line, the key, the problem and the
    remedy.
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
        raise invalid(_first_problem(error, text, model), remedy=None) from None


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


def _first_problem(error: ValidationError, text: str, model: type[BaseModel]) -> str:
    first_error = error.errors(include_url=False)[0]
    option = _option(first_error["loc"])
    line = _line(text, first_error["loc"])
    num_others = error.error_count() - 1
    others_text = f" (and {num_others} more)" if num_others else ""
    return f"line {line}: {option}{_message(first_error, model)}{others_text}"


def _message(problem: ErrorDetails, model: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        *place, key = problem["loc"]
        meant = closest(str(key), _known_keys(model.model_json_schema(), place))
        remedy = "correct its spelling" if meant is None else f"did you mean {meant}?"
        return f"unknown key; {remedy}"
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


def _line(text: str, location: tuple[int | str, ...]) -> int:
    """Returns the line of a value in the file; for a missing value, the line where it belongs."""
    node = yaml.compose(text, Loader=_Loader)
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
