"""The pages of the site: `docs/`, other documents of the repository, and generated parts.

A line `<!-- generated: NAME ARGUMENT -->` in a page stands for a part that is made from the code
when the site is built. Such parts are not committed, so they are never out of date. A line
`<!-- include: NAME.md -->` stands for another document, which is a section of that page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from docs_site import (
    benchmarks,
    command_line,
    dagster_classes,
    exit_statuses,
    findings,
    ledger,
    metrics,
    operation_pages,
    operators,
    python_api,
    records,
    remedies,
    table_protocol,
)
from docs_site.sections import INCLUDE, Place, anchor_of, as_section, outside_of_code
from docs_site.source import ROOT

PARTS: Mapping[str, Callable[[str], str]] = {
    "airflow-classes": operators.announced,
    "airflow-configuration": operators.configuration,
    "airflow-connection": operators.connection,
    "benchmark-figures": benchmarks.figures,
    "benchmark-scale": benchmarks.scale,
    "cli-options": command_line.options,
    "cli-verbs": command_line.verbs,
    "clients": table_protocol.clients,
    "dagster-class": dagster_classes.fields,
    "errors": exit_statuses.error_classes,
    "finding-remedies": remedies.findings,
    "fsck-findings": findings.kinds,
    "ledger-columns": ledger.columns,
    "metrics": metrics.of,
    "operation-records": records.operations,
    "other-remedies": remedies.others,
    "python": python_api.member,
    "python-operations": python_api.operations,
    "records": records.documents,
    "refusal-remedies": remedies.refusals,
    "situation-remedies": remedies.situations,
    "table-features": table_protocol.features,
    "table-properties": table_protocol.properties,
}
"""What makes each kind of generated part from its argument."""

VERBS = "reference/cli/"
PURPOSES = "reference/commands/"
"""The documents of the verbs, and the pages that include them, one for each purpose."""

_DIRECTIVE = re.compile(r"^<!-- generated: ([a-z-]+)(?: (\S+))? -->$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_OF_THE_REPOSITORY = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"),
    *("examples/airflow/README.md", "examples/dagster/README.md"),
)
"""Documents outside of `docs/` that are pages too. The site has a first page of its own."""

_NOT_ON_THE_SITE = ("conformance.md", "mutants.md")
"""Records of the tests, which only contributors read."""


class PageError(Exception):
    """A page that cannot be built: the message names the page and what is wrong."""


def collect() -> dict[str, str]:
    """Every page of the site, by its path, complete with its sections and generated parts."""
    texts = _documents()
    places = _places(texts)

    def complete(source: str) -> str:
        text = _generated(texts[source], source)
        if places[source].anchor:
            text = as_section(text, places[source].anchor)
        text = _linked(text, source=source, places=places)
        return INCLUDE.sub(lambda match: complete(_beside(source, match[1])), text)

    return {place.page: complete(source) for source, place in places.items() if not place.anchor}


def _documents() -> dict[str, str]:
    """The text of each document, by its path in the repository."""
    texts = {f"docs/{name}": (ROOT / "docs" / name).read_text() for name in _in_docs()}
    texts |= {source: (ROOT / source).read_text() for source in _OF_THE_REPOSITORY}
    for purpose, verbs in command_line.verbs_by_purpose().items():
        texts[f"docs/{PURPOSES}{purpose}.md"] = command_line.page(purpose)
        for verb in verbs:
            document = f"docs/{VERBS}{verb}.md"
            if document not in texts:
                texts[document] = _page_of(verb)
    return texts


def _places(texts: Mapping[str, str]) -> dict[str, Place]:
    """Where each document is: a page of its own, or a section of the page that includes it."""
    places = {source: Place(_page_path(source)) for source in texts}
    for source, text in texts.items():
        for match in INCLUDE.finditer(text):
            document = _beside(source, match[1])
            if document not in texts:
                raise PageError(f"{source}: there is no document {match[1]} to include")
            places[document] = Place(_page_path(source), anchor_of(document))
    return places


def _beside(source: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), name))


def _page_path(source: str) -> str:
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    name = source.removesuffix(".md").removesuffix("/README").lower().replace("/", "-")
    return f"project/{name}.md"


def assets() -> list[str]:
    """The other files of the site, relative to `docs/`."""
    folder = ROOT / "docs"
    kinds = (".png", ".svg", ".css", ".json", ".yaml")
    files = [path for path in folder.rglob("*") if path.suffix in kinds]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _in_docs() -> list[str]:
    folder = ROOT / "docs"
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    return sorted(name for name in names if name not in _NOT_ON_THE_SITE)


def _page_of(verb: str) -> str:
    """The page of an operation that `docs/` has none of."""
    made = operation_pages.page(verb)
    if made is None:
        raise PageError(f"docs/{VERBS} has no page for the verb {verb}")
    return made


def _generated(text: str, page: str) -> str:
    def part(match: re.Match[str]) -> str:
        name, argument = match[1], match[2] or ""
        if name not in PARTS:
            raise PageError(f"{page}: there is no generated part {name}")
        try:
            return PARTS[name](argument)
        except (KeyError, AssertionError) as error:
            raise PageError(f"{page}: {match[0]}: {error!r}") from error

    return _DIRECTIVE.sub(part, text)


def _linked(text: str, *, source: str, places: Mapping[str, Place]) -> str:
    """The page with its relative links as they are in the site.

    A link to a page, a section or an asset leads there. A file of the repository that is no page,
    such as a DAG, is named instead, because the site does not contain it.
    """
    here = posixpath.dirname(places[source].page) or "."

    def link(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = _beside(source, target)
        if path in places:
            place = places[path]
            fragment = place.fragment(anchor.removeprefix("#"))
            page = posixpath.relpath(place.page, here) if place.page != places[source].page else ""
            return f"{image}[{label}]({page or ('' if fragment else target)}{fragment})"
        asset = path.removeprefix("docs/")
        if asset in benchmarks.names():
            return f"{image}[{label}]({posixpath.relpath(asset, here)})"
        if not (ROOT / path).exists():
            raise PageError(f"{source}: the link to {target} leads nowhere")
        if path != asset and asset not in _NOT_ON_THE_SITE and (ROOT / path).is_file():
            return f"{image}[{label}]({posixpath.relpath(asset, here)}{anchor})"
        return label if label.strip("`") == path else f"{label} (`{path}`)"

    return outside_of_code(text, lambda prose: _LINK.sub(link, prose))
