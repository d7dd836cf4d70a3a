"""Every remedy is played by a test, or says what a person must find out."""

from __future__ import annotations

import ast
import re
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest

from delta_maintenance import errors
from delta_maintenance.operations.core import operations
from delta_maintenance.operations.fsck.findings import KINDS
from tests.support.remedies.by_person import CAUSED_ELSEWHERE, OPEN
from tests.support.remedies.damages import DAMAGES
from tests.support.remedies.refusals import ELSEWHERE, REFUSALS

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "plugin" / "delta_maintenance"
USAGE = ("InvalidRequestError", "CatalogError")
"""Errors of the call, whose remedy is another call."""


@pytest.fixture
def remedies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import remedies

    return remedies


def test_every_command_that_a_remedy_names_exists(remedies: ModuleType) -> None:
    from docs_site import command_line

    flags = {
        verb: set(parser._option_string_actions)
        for verb, parser in command_line._verb_parsers().items()
    }
    every = set().union(*flags.values())
    texts = [each.remedy for each in remedies.in_source()]
    texts += [kind.remedy for kind in KINDS.values()]
    for text in texts:
        verb = None
        for word in remedies._command().findall(text):
            if not word.startswith("--"):
                verb = word
            else:
                assert word in (flags[verb] if verb else every), text


def test_a_problem_has_no_semicolon() -> None:
    """Lines of errors are divided at the first one, which comes before the remedy."""
    problems = [
        ast.unparse(call.args[0])
        for path in sorted(LIBRARY.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Name)
        if hasattr(errors, call.func.id)
    ]
    assert len(problems) > 300
    assert [problem for problem in problems if "; " in problem] == []


def test_a_verb_has_the_flags_that_its_own_messages_name(remedies: ModuleType) -> None:
    from docs_site import command_line

    parsers = command_line._verb_parsers()
    messages = [
        (path.relative_to(LIBRARY), remedy.remedy)
        for path in sorted((LIBRARY / "operations").rglob("*.py"))
        for remedy in remedies._in_module(ast.parse(path.read_text()))
    ]
    examined = 0
    for path, text in messages:
        names = {part.removesuffix(".py").replace("_", "-") for part in path.parts}
        for verb in names & parsers.keys():
            words = remedies._command().findall(text)
            own = takewhile(lambda word: word.startswith("--"), words)
            for flag in own:
                examined += 1
                assert flag in parsers[verb]._option_string_actions, (verb, text)
    assert examined > 5
    for record in operations():
        # Where Spark is missing, a message offers the local engine.
        assert record.chooses_engine == (record.spark is not None), record.name


def test_every_refusal_is_played_or_asks_a_person(remedies: ModuleType) -> None:
    unplayed = [
        each
        for each in remedies.in_source()
        if each.error != remedies._OF_CALL and remedies.result_of(each) is None
    ]
    assert [f"{each.error}: {each.problem}; {each.remedy}" for each in unplayed] == []


def test_a_remedy_that_names_a_command_is_played(remedies: ModuleType) -> None:
    asking = [
        f"{each.error}: {each.problem}; {each.remedy}"
        for each in remedies.in_source()
        if each.commands
        and each.error not in USAGE
        and remedies.result_of(each) in (None, *OPEN.values())
    ]
    assert asking == []


def test_the_page_shows_every_finding_and_every_refusal(remedies: ModuleType) -> None:
    from docs_site import pages

    page = pages.collect()["reference/remedies.md"]
    assert [kind for kind in KINDS if f"| `{kind}` |" not in page] == []
    refused = (*REFUSALS.values(), *DAMAGES.values())
    assert [each.command for each in refused if f"`{each.command}`" not in page] == []
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert [row for row in rows if re.search(r"\|\s+\||<br>\s*\||“…?”", row)] == []
    assert "can only be read, because fsspec has no call" in page
    assert re.search(r"<!-- generated", page) is None


def test_what_is_played_elsewhere_is_still_said(remedies: ModuleType) -> None:
    texts = [f"{each.problem}; {each.remedy}" for each in remedies.in_source()]
    assert [words for words in ELSEWHERE if not any(words in text for text in texts)] == []
    played = [where.split()[2].rstrip(",") for where in ELSEWHERE.values() if "refusal" in where]
    assert set(played) <= REFUSALS.keys()
    whole = [f"{each.error}: {each.problem}; {each.remedy}" for each in remedies.in_source()]
    patterns = (*CAUSED_ELSEWHERE, *OPEN)
    assert [words for words in patterns if not any(re.search(words, text) for text in whole)] == []
    assert [path for path in CAUSED_ELSEWHERE.values() if not (ROOT / path).exists()] == []
