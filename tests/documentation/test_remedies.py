"""Remedies that name a command name one that exists, and a test plays them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from delta_maintenance.operations.fsck.findings import KINDS
from tests.support.remedies.refusals import ELSEWHERE, REFUSALS

ROOT = Path(__file__).parents[2]
USAGE = ("InvalidRequestError", "CatalogError")
"""Errors of the call, whose remedy is another call."""


@pytest.fixture
def remedies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import remedies

    return remedies


def pieces(problem: str) -> list[str]:
    """The fixed texts of a message that are long enough to recognise it."""
    return [text.strip() for text in problem.split("…") if len(text.strip()) > 12]


def test_every_command_that_a_remedy_names_exists(remedies: ModuleType) -> None:
    from docs_site import command_line

    flags = {
        verb: set(parser._option_string_actions)
        for verb, parser in command_line._subparsers().choices.items()
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


def test_every_refusal_that_names_a_command_is_played(remedies: ModuleType) -> None:
    problems = [refusal.problem for refusal in REFUSALS.values()]
    unplayed = [
        each
        for each in remedies.in_source()
        if each.commands
        and each.error not in USAGE
        and not any(
            piece in problem or problem in piece
            for piece in pieces(each.problem)
            for problem in problems
        )
        and not any(words in f"{each.problem}; {each.remedy}" for words in ELSEWHERE)
    ]
    assert [f"{each.error}: {each.problem}; {each.remedy}" for each in unplayed] == []


def test_the_page_shows_every_finding_and_every_refusal(remedies: ModuleType) -> None:
    from docs_site import pages

    page = pages.collect()["reference/remedies.md"]
    assert [kind for kind in KINDS if f"| `{kind}` |" not in page] == []
    assert [each.command for each in REFUSALS.values() if f"`{each.command}`" not in page] == []
    assert "can only be read, because fsspec has no call" in page
    assert re.search(r"<!-- generated", page) is None


def test_what_is_played_elsewhere_is_still_said(remedies: ModuleType) -> None:
    texts = [f"{each.problem}; {each.remedy}" for each in remedies.in_source()]
    assert [words for words in ELSEWHERE if not any(words in text for text in texts)] == []
    played = [where.split()[2].rstrip(",") for where in ELSEWHERE.values() if "refusal" in where]
    assert set(played) <= REFUSALS.keys()
