"""The remedies of findings and refusals, and what tests show of them.

Findings and refusals whose remedy a test plays come from the registries of these tests. The others
are read from the source: no test can play what a person, another engine or a store must do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from delta_maintenance.operations.fsck.findings import KINDS
from docs_site.command_line import verb_names
from docs_site.markdown import code, sentence, table
from docs_site.source import ROOT

_OF_CALL = "InvalidRequestError"
"""The error that tells the caller to correct the call or the configuration."""
_GAP = "…"
_PLAYED = "a test plays it"


@dataclass(frozen=True)
class Remedy:
    """A remedy in the source of the library, with gaps for what it fills in."""

    error: str
    problem: str
    remedy: str

    @property
    def commands(self) -> list[str]:
        """The verbs and flags of the command line that the text names."""
        return _command().findall(self.remedy)


def findings(_: str) -> str:
    """Every kind of finding, its usual remedy, and what happens when a test plays it."""
    # The registries belong to the tests, which every checkout has.
    from tests.support.remedies.finding_remedies import REMEDIES

    rows = [
        (
            code(name),
            "<br>".join([_plain(kind.remedy), *(sentence(str(a)) for a in REMEDIES[name])]),
        )
        for name, kind in KINDS.items()
    ]
    return table(("finding", "remedy and result"), rows)


def refusals(_: str) -> str:
    """Every refusal whose remedy is a command, with the commands that a test plays."""
    from tests.support.remedies.damages import DAMAGES
    from tests.support.remedies.refusals import REFUSALS

    rows = [
        (f"{code(refusal.command)}<br>{_quoted(refusal.problem)}", f"{refusal}: the command works.")
        for refusal in (*REFUSALS.values(), *DAMAGES.values())
    ]
    return table(("refused command and message", "remedy and result"), rows)


def situations(_: str) -> str:
    """Every refusal that other processes, stores and catalogs cause, and what a test does."""
    from tests.support.remedies.situations import SITUATIONS

    rows = [
        (_quoted(situation.problem), sentence(f"{situation.remedy}: the work is done"))
        for situation in SITUATIONS.values()
    ]
    return table(("message", "remedy and result"), rows)


def others(_: str) -> str:
    """Every other remedy of an error in the source."""
    rows = sorted(
        {
            (_quoted(remedy.problem), f"{_plain(remedy.remedy)}<br>{sentence(_shown(result))}")
            for remedy in in_source()
            if remedy.error.endswith("Error") and remedy.error != _OF_CALL and not remedy.commands
            if (result := result_of(remedy) or "") != _PLAYED and remedy.problem != _GAP
        }
    )
    return table(("message", "remedy and result"), rows)


def result_of(remedy: Remedy) -> str | None:
    """What tests show of a remedy, or what a person must find out; None if nothing says that."""
    from tests.support.remedies.by_person import CAUSED_ELSEWHERE, OPEN
    from tests.support.remedies.damages import DAMAGES
    from tests.support.remedies.refusals import ELSEWHERE, REFUSALS
    from tests.support.remedies.situations import SITUATIONS

    message = f"{remedy.problem}; {remedy.remedy}"
    pieces = [text.strip() for text in re.split("…|; ", message) if len(text.strip()) > 11]
    problems = [
        *(refusal.problem for refusal in REFUSALS.values()),
        *(damage.problem for damage in DAMAGES.values()),
        *(situation.problem for situation in SITUATIONS.values()),
    ]
    for problem in (words for each in problems for words in each.split("|")):
        if any(piece in problem or problem in piece for piece in pieces):
            return _PLAYED
    for words, where in ELSEWHERE.items():
        if words in message:
            return where
    for pattern, path in CAUSED_ELSEWHERE.items():
        if re.search(pattern, f"{remedy.error}: {message}"):
            return f"a test causes it in {path}"
    text = f"{remedy.error}: {message}"
    return next((answer for pattern, answer in OPEN.items() if re.search(pattern, text)), None)


def _shown(result: str) -> str:
    """The result without the path of a test, which readers of the page do not have."""
    return result.partition(" in tests/")[0]


def _plain(text: str) -> str:
    """A sentence whose long names are code, which narrow screens can break."""
    return re.sub(r"(?<![`\w.=])(?:delta|spark)\.\w[\w.]*\w(?![`\w=])", r"`\g<0>`", sentence(text))


def _quoted(problem: str) -> str:
    """The words of a message, given with gaps or as a regular expression with alternatives."""
    return f"“{problem.split('|')[0].replace('`', '')}”"


@cache
def in_source() -> tuple[Remedy, ...]:
    """The remedies that are texts in the source of the library."""
    library = ROOT / "plugin" / "delta_maintenance"
    return tuple(
        remedy
        for path in sorted(library.rglob("*.py"))
        for remedy in _in_module(ast.parse(path.read_text()))
    )


def _in_module(module: ast.Module) -> Iterator[Remedy]:
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            text = _text(keyword.value)
            if keyword.arg == "remedy" and text.strip(f"{_GAP} "):
                problem = _text(node.args[0]) if node.args else _GAP
                yield Remedy(ast.unparse(node.func), problem, text)


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
        case ast.BoolOp(values=parts):
            return ", or ".join(filter(lambda text: text != _GAP, map(_text, parts))) or _GAP
        case ast.IfExp(body=body, orelse=other):
            return _text(body) or _text(other)
    return _GAP


@cache
def _command() -> re.Pattern[str]:
    # Verbs of one word also occur as words.
    verbs = [name for name in verb_names() if "-" in name or name in ("fsck", "vacuum", "optimize")]
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(verbs)})(?![\w-])|--[a-z-]+")
