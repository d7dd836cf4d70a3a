"""The pages of the releases, from the sections of `CHANGELOG.md`."""

from __future__ import annotations

import re

from docs_site.source import ROOT

_HEADING = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


def versions(changelog: str | None = None) -> list[str]:
    """The versions of the change log, the newest first.

    `ValueError` if a section is not headed by a version with its date.
    """
    text = _text() if changelog is None else changelog
    found = [match[1] for match in _HEADING.finditer(text)]
    if len(found) != len(re.findall(r"^## ", text, re.MULTILINE)):
        raise ValueError("CHANGELOG.md: a section needs a heading such as '## 1.2.3 (2026-01-31)'")
    return found


def pages(changelog: str | None = None) -> dict[str, str]:
    """The list of all releases, as `index`, and the page of each version."""
    text = _text() if changelog is None else changelog
    versions(text)
    introduction, *sections = _HEADING.split(text)
    found = {"index": introduction.replace("# Changelog", "# Releases", 1)}
    for version, date, changes in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        found["index"] += f"- [{version}]({version}.md) ({date})\n"
        raised = re.sub(r"^#(#+ )", r"\1", changes.strip(), flags=re.MULTILINE)
        found[version] = f"# {version} ({date})\n\n{raised}\n"
    return found


def _text() -> str:
    return (ROOT / "CHANGELOG.md").read_text()
