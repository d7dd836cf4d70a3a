"""The pages of the site: `docs/`, other documents of the repository, and generated parts.

A line `<!-- generated: NAME ARGUMENT -->` in a page stands for a part that is made from the code
when the site is built. Such parts are not committed, so they are never out of date.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from docs_site import (
    command_line,
    dagster_classes,
    exit_statuses,
    findings,
    ledger,
    metrics,
    operation_pages,
    operators,
    policy,
    python_api,
    records,
    releases,
    remedies,
    table_protocol,
)
from docs_site.source import ROOT

PARTS: Mapping[str, Callable[[str], str]] = {
    "airflow-classes": operators.announced,
    "airflow-configuration": operators.configuration,
    "airflow-connection": operators.connection,
    "cli-options": command_line.options,
    "cli-verbs": command_line.verbs,
    "dagster-class": dagster_classes.fields,
    "errors": exit_statuses.error_classes,
    "finding-remedies": remedies.findings,
    "fsck-findings": findings.kinds,
    "ledger-columns": ledger.columns,
    "metrics": metrics.of,
    "operation-records": records.operations,
    "other-remedies": remedies.others,
    "policy-schema": policy.schema,
    "python": python_api.member,
    "python-operations": python_api.operations,
    "records": records.documents,
    "refusal-remedies": remedies.refusals,
    "situation-remedies": remedies.situations,
    "table-features": table_protocol.features,
    "table-properties": table_protocol.properties,
}
"""What makes each kind of generated part from its argument."""

# The page of a verb has the same name as the verb.
VERB_PAGES = "reference/cli/"
# So has the page of a version.
RELEASE_PAGES = "releases/"

_DIRECTIVE = re.compile(r"^<!-- generated: ([a-z-]+)(?: (\S+))? -->$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.MULTILINE | re.DOTALL)


class PageError(Exception):
    """A page that cannot be built: the message names the page and what is wrong."""


def collect() -> dict[str, str]:
    """Every page of the site, by its path, complete with its generated parts."""
    sources = {f"docs/{name}": name for name in _in_docs()} | _of_the_repository()
    texts = {source: (ROOT / source).read_text() for source in sources}
    for name, text in releases.pages().items():
        # The sections are linked from the change log as if they were files beside it.
        source = "CHANGELOG.md" if name == "index" else f"{name}.md"
        sources[source], texts[source] = f"{RELEASE_PAGES}{name}.md", text
    for verb in command_line.verb_names():
        name = f"{VERB_PAGES}{verb}.md"
        if f"docs/{name}" not in sources:
            sources[f"docs/{name}"], texts[f"docs/{name}"] = name, _page_of(verb)
    return {
        page: _linked(_generated(texts[source], page), source=source, pages=sources)
        for source, page in sources.items()
    }


def assets() -> list[str]:
    """The other files of the site, relative to `docs/`."""
    folder = ROOT / "docs"
    kinds = (".png", ".svg", ".css", ".json", ".yaml")
    files = [path for path in folder.rglob("*") if path.suffix in kinds]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _in_docs() -> list[str]:
    folder = ROOT / "docs"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))


def _of_the_repository() -> dict[str, str]:
    """Documents outside of `docs/` that are pages too, each with its path in the site.

    `README.md` is not: the site has a first page of its own.
    """
    sources = [path.name for path in sorted(ROOT.glob("*.md")) if path.name != "README.md"]
    sources += ["benchmarks/README.md"]
    sources += ["examples/airflow/README.md", "examples/dagster/README.md"]
    return {source: f"project/{_name(source)}.md" for source in sources}


def _page_of(verb: str) -> str:
    """The page of an operation that `docs/` has none of."""
    made = operation_pages.page(verb)
    if made is None:
        raise PageError(f"docs/{VERB_PAGES} has no page for the verb {verb}")
    return made


def _name(source: str) -> str:
    return source.removesuffix(".md").removesuffix("/README").lower().replace("/", "-")


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


def _linked(text: str, *, source: str, pages: Mapping[str, str]) -> str:
    """The page with its relative links as they are in the site.

    A link to a page or an asset leads there. A file of the repository that is no page, such as a
    DAG, is named instead, because the site does not contain it.
    """

    def link(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in pages:
            here = posixpath.dirname(pages[source])
            return f"{image}[{label}]({posixpath.relpath(pages[path], here or '.')}{anchor})"
        if not (ROOT / path).exists():
            raise PageError(f"{source}: the link to {target} leads nowhere")
        if path.startswith("docs/") and (ROOT / path).is_file():
            here = posixpath.dirname(pages[source])
            where = posixpath.relpath(path.removeprefix("docs/"), here or ".")
            return f"{image}[{label}]({where}{anchor})"
        return label if label.strip("`") == path else f"{label} (`{path}`)"

    # Code blocks may show Markdown; their text stays as it is.
    pieces, end = [], 0
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, _LINK.sub(link, text[end:])])
