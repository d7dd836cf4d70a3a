"""The fields of the form for one operation, made from its record, and the options in an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args, get_origin

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.facts import size_text
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.given_options import check_options, require_known
from delta_maintenance.operations.core.registry import AnyOperation
from delta_maintenance.policies.definition.policy import Policy
from delta_maintenance.policies.models import Assessment
from delta_maintenance.quantities import duration_text, parse_size
from delta_maintenance_airflow.compat import AirflowFailException
from delta_maintenance_airflow.health_page.formats import option_title
from delta_maintenance_airflow.operators.manual import SHORT_RETENTION, require_allowed_options

Kind = Literal[
    "switch", "choice", "number", "size", "duration", "instant", "list", "mapping", "sql", "text"
]
"""The kind of input. Only a switch is sent as a flag, a list as lines, all others as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """One field of the form."""

    name: str
    """The option."""
    title: str
    help: str
    """With code between backticks."""
    kind: Kind
    required: bool = False
    default: str = ""
    """The value of an empty field, for people."""
    by_policy: bool = False
    """Whether that value is the policy's."""
    is_on: bool = False
    """Whether a switch is on unless it is changed."""
    choices: tuple[str, ...] = ()
    least: int | None = None
    unit: str = ""
    example: str = ""
    advanced: bool = False
    """Whether it is shown apart from the options that people use."""
    shortens: bool = False
    """Whether it is only for the Dag that may shorten a retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """The options in a filled form, or the problems of its fields."""

    options: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """By option; under the empty name a problem of none of the fields."""


def option_fields(
    record: AnyOperation, by_policy: Mapping[str, Any] | None = None
) -> tuple[OptionField, ...]:
    """The fields of an operation: its subject first, and what shortens a retention last."""
    fields = [_field(flag, by_policy or {}) for flag in _fields(record)]
    titles = {option.name: option.title for option in fields}
    fields = [replace(option, help=_with_titles(option.help, titles)) for option in fields]
    order = {name: at for at, name in enumerate(record.subjects)}
    fields.sort(key=lambda e: (e.shortens, not e.required, order.get(e.name, len(order))))
    return tuple(fields)


def policy_values(
    record: AnyOperation, policy: Policy | None, assessment: Assessment | None
) -> dict[str, Any]:
    """The options that the policy gives to an operation on an assessed table.

    Those of the last assessment, if the operation was due; else the values of its rule, which have
    the names of the options.
    """
    if assessment is None:
        return {}
    options = next((e.options for e in assessment.operations if e.operation == record.name), None)
    if options is not None:
        return {flag.name: getattr(options, flag.name) for flag in _fields(record)}
    if policy is None:
        return {}
    try:
        rules = policy.table_at(assessment.uri, name=assessment.name).rules
    except DeltaMaintenanceError:
        # A table that only its catalog can find.
        return {}
    rule = rules.value(record.policy.key) if record.policy is not None else None
    values = {flag.name: getattr(rule, flag.name, None) for flag in _fields(record)}
    common = {
        "other_writers": rules.other_writers,
        "quiet": rules.quiet,
        "engine": rules.engine.prefer,
    }
    values |= {name: value for name, value in common.items() if name in values}
    return {name: value for name, value in values.items() if value is not None}


def read_answer(
    record: AnyOperation, answers: Mapping[str, Any], *, short_retention: bool = False
) -> CheckedOptions:
    """Converts the changed fields of a form to options, and checks them by the record."""
    fields = {flag.name: flag for flag in flag_fields(record.options)}
    options: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, value in answers.items():
        try:
            require_known(record, {name: value})
            options[name] = _value(fields[name], value) if name in fields else value
            check_options(record, {name: options[name]})
        except InvalidRequestError as error:
            problems[name if name in fields else ""] = _problem(name, error)
    if not problems:
        try:
            require_allowed_options(options, short_retention=short_retention)
        except AirflowFailException as error:
            problems[""] = str(error)
    return CheckedOptions(problems=problems) if problems else CheckedOptions(options=options)


def _problem(name: str, error: InvalidRequestError) -> str:
    """The problem for people who see the field."""
    problem = error.problem.removeprefix(f"{name}: ")
    remedy = error.remedy or ""
    return problem if remedy.startswith("correct this field") else f"{problem}; {remedy}"


_OF_TASK = ("operation_id", "operation_since")
"""Options that a task sets itself."""


def _fields(record: AnyOperation) -> list[FlagField]:
    return [flag for flag in flag_fields(record.options) if flag.name not in _OF_TASK]


def _field(flag: FlagField, by_policy: Mapping[str, Any]) -> OptionField:
    kind = _kind(flag)
    policys = by_policy.get(flag.name, flag.default)
    differs = flag.name in by_policy and policys != flag.default
    default = "" if flag.is_required and not differs else _text(kind, policys)
    usual = "" if flag.is_required else _text(kind, flag.default)
    title, help_text = _divide_help(flag, usual)
    return OptionField(
        name=flag.name,
        title=title,
        help=help_text,
        kind=kind,
        required=flag.is_required and not differs,
        default=default,
        by_policy=differs,
        is_on=policys is True,
        choices=_choices(flag),
        least=flag.least,
        unit=_unit(flag.name) if kind == "number" else "",
        example=flag.flag.example or _example(flag, kind),
        advanced=flag.flag.group != "common" and not flag.is_required,
        shortens=flag.name in SHORT_RETENTION,
    )


_TITLE_ENDS = re.compile(
    r"[;:.] | \(|, (?:by default|such as|the default|or|else|which|so that|if) |$"
)
_EXAMPLE = re.compile(r"such as '([^']+)'")
_LONGEST_TITLE = 90


def _divide_help(flag: FlagField, default: str) -> tuple[str, str]:
    """The first clause of the help as the title, and the rest; else the name and the whole help."""
    text = flag.flag.help
    end = _TITLE_ENDS.search(text)
    title = text[: end.start()] if end is not None else text
    if len(title) > _LONGEST_TITLE or "`" in title or title.startswith(("for ", "beside ")):
        return option_title(flag.name), flag.flag.description
    # The default is in the field.
    rest = re.sub(
        rf"^by default {re.escape(default)}(; |$)", "", text[len(title) :].lstrip(",;:. ")
    )
    return _sentence(title), f"{_sentence(rest)}." if rest else ""


def _with_titles(text: str, titles: Mapping[str, str]) -> str:
    """A help whose names of options are the titles of their fields. A name without an underscore
    may also be a value.
    """
    return re.sub(
        r"`(\w+_\w+)`", lambda code: f"“{titles[code[1]]}”" if code[1] in titles else code[0], text
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _example(flag: FlagField, kind: Kind) -> str:
    stated = _EXAMPLE.search(flag.flag.help)
    return stated[1] if stated is not None and kind == "duration" else _EXAMPLES.get(kind, "")


_EXAMPLES: Mapping[str, str] = {
    "duration": "30 days",
    "size": "64 MiB",
    "instant": "2027-01-31T12:00:00Z",
}
_SQL = ("CONDITION", "SQL")
_UNITS = ("percent", "bytes", "files", "rows", "commits")


def _kind(flag: FlagField) -> Kind:
    if flag.kind is bool:
        return "choice" if flag.may_be_none else "switch"
    if flag.choices is not None:
        return "choice"
    if get_origin(flag.kind) is tuple:
        return "list"
    if isinstance(get_origin(flag.kind), type) and issubclass(get_origin(flag.kind), Mapping):
        return "mapping"
    if flag.kind is int:
        return "size" if flag.is_size else "number"
    if flag.kind is timedelta:
        return "duration"
    if flag.kind is datetime:
        return "instant"
    return "sql" if flag.flag.metavar in _SQL else "text"


def _choices(flag: FlagField) -> tuple[str, ...]:
    if flag.kind is bool and flag.may_be_none:
        return tuple(_FLAGS)
    return flag.choices or ()


def _unit(name: str) -> str:
    unit = next((unit for unit in _UNITS if unit in name.split("_")), "")
    return "%" if unit == "percent" else unit


_FLAGS = {"yes": True, "no": False}


def _text(kind: Kind, value: Any) -> str:
    """The text of a value for people."""
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "duration":
        return duration_text(value)
    if kind == "size":
        return size_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(flag: FlagField, answer: Any) -> Any:
    """Converts what a field contains to the JSON of an option; the record checks the rest."""
    kind = _kind(flag)
    if kind == "choice" and flag.kind is bool:
        return _FLAGS.get(answer, answer) if isinstance(answer, str) else answer
    if kind == "number":
        return _whole(answer)
    if kind == "size":
        return parse_size(answer) if isinstance(answer, str) else answer
    if kind == "list" and _is_whole(get_args(flag.kind)[0]):
        return [_whole(item) for item in _lines(answer)]
    if kind == "list":
        return _lines(answer)
    return _mapping(_lines(answer)) if kind == "mapping" else answer


def _is_whole(kind: Any) -> bool:
    return kind is int or get_args(kind)[:1] == (int,)


def _lines(answer: Any) -> Sequence[Any]:
    return answer if isinstance(answer, list) else [answer]


def _whole(answer: Any) -> Any:
    text = str(answer).strip()
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else answer


def _mapping(lines: Sequence[Any]) -> dict[str, str]:
    pairs = [str(line).partition("=") for line in lines]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise InvalidRequestError("a line is not NAME=VALUE", remedy="write one on each line")
    mapping = {name.strip(): value.strip() for name, _, value in pairs}
    if len(mapping) < len(pairs):
        raise InvalidRequestError("a name occurs twice", remedy="give it one value")
    return mapping
