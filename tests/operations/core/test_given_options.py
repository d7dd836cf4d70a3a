"""Options as people write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import delta_maintenance
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import find, operations
from delta_maintenance.operations.core.flags import flag_fields
from delta_maintenance.operations.core.given_options import (
    check_options,
    read_options,
    replace_flags,
)
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.vacuum import VacuumOptions


@pytest.mark.parametrize("text", ["7 days 12 hours", "7d 12h", "P7DT12H"])
def test_durations_are_read_as_on_the_command_line(text: str) -> None:
    read = read_options(find("vacuum"), {"retention": text})
    assert read == VacuumOptions(retention=timedelta(days=7, hours=12))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retentoin": "7 days"}, "vacuum has no option 'retentoin'; give 'retention', if that"),
        ({"qwertz": 1}, "vacuum has no option 'qwertz'; give some of mode, retention"),
        ({"retention": "soon"}, "retention: 'soon' is not a duration; write it like '7d'"),
        ({"mode": "liet"}, "mode: Input should be 'full', 'lite' or 'inventory'"),
        ({"keep_versions": [-1]}, "keep_versions.0: Input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_meant(given: dict[str, Any], said: str) -> None:
    for read in (read_options, check_options):
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
            read(find("vacuum"), given)


def test_missing_options_are_named_but_may_come_from_a_policy() -> None:
    given = {"column": "day"}
    with pytest.raises(InvalidRequestError, match="expire lacks the option older_than; give"):
        read_options(find("expire"), given)
    check_options(find("expire"), given)
    whole = read_options(find("expire"), {**given, "older_than": "400 days"})
    assert whole == ExpireOptions(column="day", older_than=timedelta(days=400))


def test_the_example_of_every_operation_is_allowed() -> None:
    for record in operations():
        check_options(record, record.example)
        read_options(record, record.example)


@pytest.mark.parametrize("name", [record.name for record in operations()])
def test_the_flags_of_a_verb_become_the_names_of_its_options(name: str) -> None:
    for field in flag_fields(find(name).options):
        named = f"give the option {field.name} X"
        assert replace_flags(f"give {field.spelling} X", name) == named
        assert replace_flags(f"after {name}, give {field.spelling} X").endswith(named)


@pytest.mark.parametrize(
    ("message", "operation", "replaced"),
    [
        ("--set A=B, --unset A", None, "the option properties A=B, the option remove A"),
        ("give --all", None, "give the option all_files"),
        ("leave out --version --at", "keep-version", "leave out the options keep, at"),
        ("leave out --version", "checkpoint", "leave out the option version"),
        ("leave out --version", None, "leave out the option version"),
        (
            "run drop-feature --feature a, and then upgrade-protocol --feature b",
            "vacuum",
            "run drop-feature with the option feature a, and then upgrade-protocol with the option "
            "features b",
        ),
    ],
)
def test_a_flag_is_that_of_the_operation_that_the_message_names(
    message: str, operation: str | None, replaced: str
) -> None:
    assert replace_flags(message, operation) == replaced


def test_every_message_that_names_a_flag_of_a_verb_names_one_that_the_verb_has() -> None:
    flags = {r.name: {f.spelling for f in flag_fields(r.options)} for r in operations()}
    named = [pair for pair in flags_in_messages() if pair[0] in flags]
    assert len(named) > 30
    common = {"--dry-run", "--report", "--version", "--json"}
    assert {pair for pair in named if pair[1] not in flags[pair[0]] | common} == set()


def flags_in_messages() -> Iterator[tuple[str, str]]:
    for path in Path(delta_maintenance.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"([a-z]+(?:-[a-z]+)*) (--[a-z][a-z-]*)", node.value)
