"""The commands and programs that README.md and the first pages show run as they are shown."""

from __future__ import annotations

import ast
import configparser
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml

from delta_maintenance.cli.main import _parse, _parser, main
from delta_maintenance.operations.core.operation import Purpose
from delta_maintenance.operations.core.registry import operations
from delta_maintenance.policies.definition import load_policy

ROOT = Path(__file__).parents[2]
STARTS = sorted(f"docs/start/{path.name}" for path in ROOT.glob("docs/start/*.md"))
PAGES = ("README.md", "docs/index.md", *STARTS)

# Commands that need the network or a running orchestrator. Other tests cover their effects, in
# tests/airflow/policy_dags, tests/dagster and tests/packaging/test_wheel.py.
ELSEWHERE = (
    *("pip", "make", "airflow", "create-dagster", "dg", "dagster"),
    *("cd", "cp", "export", "mkdir"),
)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The words of every command that a page shows."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table and the policy of docs/start/command-line.md."""
    folder = tmp_path_factory.mktemp("lake")
    (program,) = blocks("docs/start/command-line.md", "python")
    with contextlib.chdir(folder):
        exec(program, {})
    (policy,) = blocks("docs/start/command-line.md", "yaml")
    (folder / "policy.yaml").write_text(policy)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page: str, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake)
    for words in commands(page):
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        elif words[0] not in ELSEWHERE:
            assert words[0] == "delta-maintenance", f"{page}: {words}"
            assert main(words[1:]) == 0, f"{page}: {words}"


def test_the_policy_in_the_readme_is_assessed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (policy,) = blocks("README.md", "yaml")
    (lake / "readme.yaml").write_text(policy)
    monkeypatch.chdir(lake)
    assert main(["assess", "readme.yaml"]) == 0


def test_the_readme_has_every_verb_by_its_purpose() -> None:
    rows = re.findall(r"^\| ([a-z]+) \| (`.*`) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    verbs = _parser([]).verbs
    assert [purpose for purpose, _ in rows] == list(get_args(Purpose))
    assert {purpose: set(re.findall(r"`([a-z-]+)`", names)) for purpose, names in rows} == {
        purpose: {name for name, verb in verbs.items() if verb.purpose == purpose}
        for purpose in get_args(Purpose)
    }


def test_the_output_in_the_tutorial_is_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/start/command-line.md", "python")
    exec(program, {})
    assert _commits_since_checkpoint(capsys) == 40
    assert main(["checkpoint", "lake/events"]) == 0
    assert re.search("commits since +0\n", _output(capsys, "inspect", "lake/events"))
    assert _commits_since_checkpoint(capsys) == 0
    assert "nothing" in _output(capsys, "vacuum", "lake/events")


def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells, names, shown = blocks("docs/start/notebook.md", "python"), dict[str, object](), []
    for cell in cells:
        program = ast.parse(cell)
        last = program.body[-1]
        if isinstance(last, ast.Expr):
            program.body.pop()
        exec(compile(program, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            # A notebook shows the value of the last expression.
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    documents = [each for each in shown if hasattr(each, "_repr_html_")]
    assert len(documents) >= 6
    assert all("<table" in each._repr_html_() for each in documents)


GUIDES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def test_every_command_that_a_page_shows_is_one() -> None:
    checked = 0
    for page in GUIDES:
        text = (ROOT / page).read_text().replace("\\\n", " ")
        shown = re.findall(r"^(?: {4}(?:\$ )?)?(delta-maintenance [a-z-]+ .*)$", text, re.MULTILINE)
        shown += re.findall(r"`(delta-maintenance [a-z-]+ [^`]*)`", text)
        for command in shown:
            words = _words(command)
            # Dots stand for more arguments.
            if "…" in words or "VERB" in words:
                continue
            try:
                _parse(words)
            except SystemExit as ended:
                assert ended.code == 0, f"{page}: {command}"
            checked += 1
    assert checked > 80


def _words(command: str) -> list[str]:
    """The arguments of a command, up to a pipe or another operator of the shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    words = itertools.takewhile(lambda word: word[0] not in "|>&;", lexer)
    return list(words)[1:]


@pytest.mark.parametrize("page", GUIDES)
def test_every_policy_that_a_page_shows_is_valid(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE", "/lake")
    for block in blocks(page, "yaml"):
        shown = yaml.safe_load(block)
        if not {"tables", "defaults"} & set(shown):
            # Rules, without the layer that they stand in; or the document of something else.
            if not set(shown) <= {"vacuum", "storage"}:
                continue
            shown = {"defaults": shown}
        whole = {"version": 1, "tables": [], **shown}
        assert [*_tables_without_writers(whole)] == []
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(whole))
        load_policy(str(tmp_path / "policy.yaml"))


PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": lambda text: [*yaml.safe_load_all(text)],
    "ini": lambda text: configparser.ConfigParser(interpolation=None).read_string(text),
    "sh": lambda text: shlex.split(text, comments=True),
}
# SQL of Spark has no parser here.
UNPARSED = {"text", "sql"}


@pytest.mark.parametrize("page", GUIDES)
def test_every_block_of_a_page_is_well_formed(page: str) -> None:
    text = re.sub(r"^ +(?=```)", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    for language, block in re.findall(r"^```(\S*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        assert language in PARSERS or language in UNPARSED, f"{page}: {language}"
        if language in PARSERS:
            PARSERS[language](block)
        if language == "python":
            _require_our_names(ast.parse(block))


def _require_our_names(program: ast.Module) -> None:
    """Fails if a program imports a name that is not there, or calls it with unknown keywords."""
    ours: dict[str, object] = {}
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not _has(module, name.name)] == []
            ours |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(program):
        called = (
            ours.get(node.func.id)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            else None
        )
        if isinstance(node, ast.Call) and callable(called):
            parameters = inspect.signature(called).parameters.values()
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                unknown = {word.arg for word in node.keywords} - {item.name for item in parameters}
                assert not unknown - {None}, ast.unparse(node)


def _is_ours(module: str) -> bool:
    package = module.partition(".")[0]
    needed = {"delta_maintenance_airflow": "airflow", "delta_maintenance_dagster": "dagster"}
    is_there = package not in needed or importlib.util.find_spec(needed[package]) is not None
    return package.startswith("delta_maintenance") and is_there


def _has(module: ModuleType, name: str) -> bool:
    try:
        return hasattr(module, name) or bool(importlib.import_module(f"{module.__name__}.{name}"))
    except ModuleNotFoundError:
        return False


def _tables_without_writers(policy: dict[str, Any]) -> Iterator[str]:
    """Tables on S3 with a rule whose commits are refused, because nothing names other writers."""
    commits = {
        record.policy.key
        for record in operations()
        if record.policy and record.effects.commits and record.name not in ("fsck", "vacuum")
    }
    for table in policy["tables"]:
        address = table.get("uri") or table.get("pattern") or ""
        rules = {**policy.get("defaults", {}), **table}
        wanted = {key for key in commits if rules.get(key)}
        if address.startswith("s3:") and wanted and "other_writers" not in rules:
            yield f"{address}: {sorted(wanted)}"


def test_the_python_of_the_reference_runs(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake)
    programs = blocks("docs/reference/python.md", "python")
    assert len(programs) == 3
    for program in programs:
        exec(program.replace("s3://lake/events", "lake/events"), {})


def test_the_page_of_the_installation_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "start" / "install.md").read_text()
    assert [name for name in project["optional-dependencies"] if f"`{name}`" not in text] == []


def _commits_since_checkpoint(capsys: pytest.CaptureFixture[str]) -> int:
    document = json.loads(_output(capsys, "inspect", "lake/events", "--json"))
    number: int = document["log"]["commits_since_checkpoint"]
    return number


def _output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out
