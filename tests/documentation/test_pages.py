"""The documents name only what exists.

`make docs` checks the links and anchors of the site; this module also checks documents outside of
it, and the names of files and modules.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from delta_maintenance import __version__
from delta_maintenance.cli.main import main
from delta_maintenance.operations.core.registry import operations

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "plugin" / "delta_maintenance"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
    # Generated from the tests, and history.
    if path.name not in ("conformance.md", "CHANGELOG.md")
)
# What a path may be relative to: the repository, a source root, or the library itself.
HOMES = (ROOT, ROOT / "operators", ROOT / "plugin", LIBRARY)
PACKAGES = "delta_maintenance(?:_airflow|_dagster)?"
# Commands and tests create these folders, and not always with the same files.
CREATED = ("build", ".tools")
FOLDERS = {
    path.name
    for home in HOMES
    for path in home.iterdir()
    if path.is_dir() and path.name not in CREATED
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_name_leads_somewhere(document: Path) -> None:
    text = document.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", prose)
    links = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in links if not (document.parent / target).exists()] == []
    named = re.findall(r"`([a-z_.]+(?:/[\w.-]+)+)/?`", prose)
    ours = [name for name in named if name.split("/")[0] in FOLDERS]
    assert [name for name in ours if not _exists(name)] == []
    modules = re.findall(rf"`({PACKAGES}\.[\w.]+)`", text)
    imports = re.findall(rf"^(?:from|import) ({PACKAGES}[\w.]*)", text, re.MULTILINE)
    assert [name for name in [*modules, *imports] if not _importable(name)] == []


def _exists(name: str) -> bool:
    return any((home / f"{name}{end}").exists() for home in HOMES for end in ("", ".py"))


def _importable(name: str) -> bool:
    """Whether a dotted name is a module, or a name that the source of a module contains."""
    if _source(name) is not None:
        return True
    module, _, attribute = name.rpartition(".")
    path = _source(module)
    return path is not None and re.search(rf"\b{attribute}\b", path.read_text()) is not None


def _source(module: str) -> Path | None:
    relative = module.replace(".", "/")
    for root in (ROOT / "plugin", ROOT / "operators"):
        for path in (root / f"{relative}.py", root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def test_files_of_this_distribution_have_its_version() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    versions = set(re.findall(r"delta[-_]maintenance[-:](\d+\.\d+\.\d+)", text))
    assert versions == {__version__.partition(".dev")[0]}


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("integrations/spark.md", "## How the work is divided\n"),
        ("concepts/plan-and-apply.md", "## Engines\n"),
    ],
)
def test_the_table_of_engines_has_every_operation_with_a_spark_engine(
    page: str, heading: str
) -> None:
    section = (ROOT / "docs" / page).read_text().split(heading, 1)[1].split("\n## ")[0]
    subjects = " ".join(re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE))
    operations_with_engine = {record.name for record in operations() if record.spark}
    assert set(re.findall(r"`([a-z-]+)", subjects)) == operations_with_engine


def test_the_map_of_packages_is_complete() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [
        path.parent.relative_to(LIBRARY).as_posix()
        for path in sorted(LIBRARY.glob("*/*/__init__.py"))
        if path.parent.parent.name != "operations"
    ]
    assert packages
    assert [package for package in packages if f"`{package}`" not in text] == []


def test_every_picture_is_shown() -> None:
    shown = " ".join(document.read_text() for document in DOCUMENTS)
    pictures = [path.name for path in (ROOT / "docs" / "images").iterdir()]
    assert [name for name in pictures if name not in shown] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "index.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("0*.md"))
    assert [int(name[:4]) for name in listed] == list(range(1, len(listed) + 1))
    rows = re.findall(
        r"\]\((\d{4}-[\w-]+\.md)\) \| .* \| ([\d-]+) \| (.+) \|$",
        (folder / "index.md").read_text(),
        re.MULTILINE,
    )
    dated = {name: f"*{day}, {status}*" for name, day, status in rows}
    assert {name: (folder / name).read_text().splitlines()[2] for name in listed} == dated


def test_the_site_refuses_a_page_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import pages

    source = "docs/a.md"
    places = {source: pages.Place("a.md")}

    def built(text: str) -> str:
        return pages._linked(pages._generated(text, "a.md"), source=source, places=places)

    assert "| `--dry-run` |" in built("<!-- generated: cli-options vacuum -->")
    assert built("[Dags](../dags/delta_maintenance_dags.py)") == (
        "Dags (`dags/delta_maintenance_dags.py`)"
    )
    assert built("```\n[x](nowhere.md)\n```") == "```\n[x](nowhere.md)\n```"
    for wrong in (
        "<!-- generated: nothing -->",
        "<!-- generated: cli-options no-such-verb -->",
        "<!-- generated: python delta_maintenance.nothing -->",
        "[gone](gone.md)",
    ):
        with pytest.raises(pages.PageError):
            built(wrong)


def test_the_navigation_has_every_page_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_docs
    from docs_site.pages import PageError

    nav = [{"Home": "index.md"}, {"More": [{"One": "a.md"}, {"Deeper": [{"Two": "b.md"}]}]}]
    build_docs.require_navigation(nav, {"index.md", "a.md", "b.md"})
    with pytest.raises(PageError, match="lacks c.md"):
        build_docs.require_navigation(nav, {"index.md", "a.md", "b.md", "c.md"})
    with pytest.raises(PageError, match="lists b.md, which does not exist"):
        build_docs.require_navigation(nav, {"index.md", "a.md"})
    with pytest.raises(PageError, match="lists a.md twice"):
        build_docs.require_navigation([*nav, {"Again": "a.md"}], {"index.md", "a.md", "b.md"})


def test_a_document_on_a_page_of_several_keeps_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import pages

    texts = {
        "docs/all.md": "# All\n\n<!-- include: cli/a.md -->\n\n<!-- include: cli/b.md -->\n",
        "docs/cli/a.md": "# `a`\n\n## Options\n\n## Options\n\n"
        "[b](b.md#options) [b](b.md) [o](#options)\n",
        "docs/cli/b.md": "# `b`\n\n## Options\n\n```sh\n# no heading\n```\n\n[c](../c.md#x)\n",
        "docs/c.md": "# C\n\n[a](cli/a.md#options)\n",
    }
    monkeypatch.setattr(pages, "_documents", lambda: texts)
    assert pages.collect() == {
        "all.md": (
            "# All\n\n## `a` { #a }\n\n### Options { #a-options }\n\n"
            "### Options { #a-options_1 }\n\n[b](#b-options) [b](#b) [o](#a-options)\n\n\n"
            "## `b` { #b }\n\n### Options { #b-options }\n\n"
            "```sh\n# no heading\n```\n\n[c](c.md#x)\n\n"
        ),
        "c.md": "# C\n\n[a](all.md#a-options)\n",
    }
    texts["docs/c.md"] = "<!-- include: gone.md -->"
    with pytest.raises(pages.PageError, match=r"docs/c\.md: .* gone\.md"):
        pages.collect()


def test_the_site_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import pages

    assert len(pages.collect()) <= 80
    written = [
        path.read_text()
        for path in (ROOT / "docs").rglob("*.md")
        # The page of a policy's keys is generated, and in the repository.
        if path.name not in {*pages._NOT_ON_THE_SITE, "policy.md"}
        and path.parent.name != "decisions"
    ]
    assert len(" ".join(written).split()) <= 65_000


def test_the_page_of_a_verb_has_every_option_of_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    from docs_site import command_line

    verbs = command_line.verb_names()
    assert {"inspect", "vacuum", "run"} <= set(verbs)
    for verb in verbs:
        written = command_line.options(verb)
        options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", _help(verb), re.MULTILINE)
        assert len(options) > 2
        assert [
            name for name in options if f"`{name}" not in written and not name.startswith("--help")
        ] == []


def _help(verb: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        assert main([verb, "--help-all"]) == 0
    return output.getvalue()


def test_every_test_that_the_documents_name_exists() -> None:
    pages = (ROOT / "docs" / name for name in ("testing.md", "mutants.md"))
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"`(test_\w+)`", text))
    # The contracts of stores are tests that the library ships.
    files = [*ROOT.glob("tests/**/test_*.py"), *LIBRARY.glob("testing/*_contract.py")]
    sources = "".join(path.read_text() for path in files)
    assert len(named) > 50
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []
