"""pytest plugin: generates docs/conformance.md from `@pytest.mark.conformance("LOG-01", …)`.

`pytest --conformance=write` collects the suite, runs nothing and writes the document;
`--conformance=check` fails if the document is out of date. Only collection matters, so the document
is the same on a machine without Spark, without the corpus and without a network. A mark with an
unknown ID, or without any, fails every run of pytest.

docs/conformance-ids.toml names the requirements. docs/conformance-notes.toml contains the reasons
why an ID is covered only in part (`[except]`), or not covered yet (`[not-yet]`).
"""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HEADER = """\
# Conformance

The requirements of the Delta protocol for a maintenance tool, one ID per requirement, and the tests
that cover each of them. `make conformance` generates this file: the texts come from
`conformance-ids.toml` and `conformance-notes.toml` in the same folder, the tests from their marks.

- **covered**: at least one test has the ID, and no gap is known.
- **covered except**: tests have the ID; the part that follows is not covered.
- **not yet**: no test has the ID.

Requirements for engines that write rows (evaluating constraints, producing change data, assigning
identity values and the like) do not concern a maintenance tool and have no IDs here.
"""


class Contradiction(Exception):
    """The IDs, the notes and the marks do not agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A group of requirements: `ids` maps each ID to its short name."""

    name: str
    title: str
    due: bool
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The reasons why an ID is covered only in part, or not yet, by ID."""

    exceptions: Mapping[str, str]
    not_yet: Mapping[str, str]


def read_areas(file: Path) -> list[Area]:
    """The areas of conformance-ids.toml, in its order."""
    return [Area(**area) for area in tomllib.loads(file.read_text())["area"]]


def read_notes(file: Path) -> Notes:
    """The reasons of conformance-notes.toml."""
    notes = tomllib.loads(file.read_text())
    return Notes(exceptions=notes.get("except", {}), not_yet=notes.get("not-yet", {}))


def render(areas: Sequence[Area], notes: Notes, tests: Mapping[str, Iterable[str]]) -> str:
    """Renders the document; raises `Contradiction` if a note names no ID, or if tests contradict
    it.
    """
    known = {requirement for area in areas for requirement in area.ids}
    if unknown := sorted({*notes.exceptions, *notes.not_yet} - known):
        raise Contradiction(f"conformance-notes.toml names unknown ids: {', '.join(unknown)}")
    if untested := sorted(set(notes.exceptions) - set(tests)):
        raise Contradiction(f"'except' notes for ids without any test: {', '.join(untested)}")
    if tested := sorted(set(notes.not_yet) & set(tests)):
        raise Contradiction(f"'not-yet' notes for ids that tests carry: {', '.join(tested)}")

    def state(requirement: str) -> str:
        if requirement not in tests:
            return "not yet"
        return "covered except" if requirement in notes.exceptions else "covered"

    lines = [HEADER]
    for due, heading in [(True, "Requirements of today's operations"), (False, "Later milestones")]:
        group = [area for area in areas if area.due is due]
        lines += [f"## {heading}", ""]
        lines += ["| area | covered | covered except | not yet |", "|---|---|---|---|"]
        for area in group:
            count = Counter(map(state, area.ids))
            cells = [f"{area.name}: {area.title}"]
            cells += [str(count[name]) for name in ("covered", "covered except", "not yet")]
            lines.append(f"| {' | '.join(cells)} |")
        for area in group:
            lines += ["", f"### {area.name}: {area.title}", ""]
            lines += ["| id | requirement | state | tests |", "|---|---|---|---|"]
            for requirement, title in area.ids.items():
                why = notes.exceptions.get(requirement) or notes.not_yet.get(requirement)
                answer = f"{state(requirement)}: {why}" if why else state(requirement)
                covered_by = "<br>".join(f"`{test}`" for test in sorted(tests.get(requirement, ())))
                lines.append(f"| {requirement} | {title} | {answer} | {covered_by} |")
        lines.append("")
    return "\n".join(lines)


def short(item: pytest.Item) -> str:
    """Returns the name of a test in the document: folder and function, without `tests/` and
    parameters.
    """
    return item.nodeid.split("[")[0].removeprefix("tests/").replace(".py::", "::")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--conformance",
        choices=["write", "check"],
        help="write docs/conformance.md, or fail if it is out of date; runs no test",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Conformance(config.rootpath / "docs"))


class Conformance:
    """Collects the marks of one session, and renders the document if requested."""

    def __init__(self, docs: Path) -> None:
        self.docs = docs
        self.areas = read_areas(docs / "conformance-ids.toml")
        self.tests: defaultdict[str, set[str]] = defaultdict(set)
        self.missing: list[str] = []

    # Before -k and -m deselect tests, because the document includes all of them.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = {requirement for area in self.areas for requirement in area.ids}
        for item in items:
            for mark in item.iter_markers("conformance"):
                unknown = [name for name in mark.args if name not in known]
                if unknown or not mark.args:
                    raise pytest.UsageError(f"{item.nodeid}: no such conformance ids: {unknown}")
                for requirement in mark.args:
                    self.tests[requirement].add(short(item))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.missing.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        mode = session.config.getoption("--conformance")
        if mode is None:
            return None
        if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
            raise pytest.UsageError("--conformance is about all tests: name none")
        if self.missing:
            raise pytest.UsageError(
                f"not collected: {', '.join(self.missing)}: broken, skipped at import (skip inside"
                " the tests instead), or without packages that only .venv has (make conformance)"
            )
        document = self.docs / "conformance.md"
        try:
            text = render(self.areas, read_notes(self.docs / "conformance-notes.toml"), self.tests)
        except Contradiction as error:
            raise pytest.UsageError(str(error)) from None
        if mode == "write":
            document.write_text(text)
        elif not document.is_file() or document.read_text() != text:
            raise pytest.UsageError("docs/conformance.md is out of date: run `make conformance`")
        return True
