"""Help, and what the command line says of names that it does not know."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.cli.main import _parse, _parser, verbs
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

WIDTH, HEIGHT = 80, 40


def test_the_bare_command_is_a_screen_of_all_verbs_by_their_purpose(cli: Any) -> None:
    outcome = cli()
    assert outcome == cli("--help")
    lines = outcome.out.splitlines()
    assert len(lines) < HEIGHT, "a terminal has no line for one more: shorten the first or last one"
    assert max(map(len, lines)) < WIDTH
    listed = [line[8:].split()[0] for line in lines[1:-2]]
    assert sorted(listed) == sorted(verbs())
    groups = [line.split()[0] for line in lines[1:-2] if not line.startswith(" ")]
    assert groups == ["look", "repair", "files", "log", "table", "policy", "spark"]


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_a_verb_fits_a_screen_and_has_a_valid_example(
    cli: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    outcome, everything = cli(verb, "--help"), cli(verb, "--help-all")
    assert (outcome.status, outcome.err) == (everything.status, everything.err) == (0, "")
    assert outcome.out.count("\n") < HEIGHT
    assert max(map(len, everything.out.splitlines())) < WIDTH
    usage, *_ = outcome.out.split("\n\n")
    assert " ".join(usage.split()).startswith(f"usage: delta-maintenance {verb} ")
    told, example = outcome.out.split("\nexample:\n")
    assert "--verbose" not in told and "\n  -h, --help " in told
    assert f"\nexample:\n{example}" in everything.out and "\n  -v, --verbose " in everything.out
    program, *words = shlex.split(example.replace("\\\n", ""))
    assert program == "delta-maintenance" and words[0] == verb
    _parser(words).parse_args(words)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["vacum", "T"], "vacuum"),
        (["optimise", "T"], "optimize"),
        (["vacuum", "T", "--retain", "7d"], "--retention"),
        (["checkpoint", "T", "--dryrun"], "--dry-run"),
        (["history", "T", "--limits=3"], "--limit"),
        (["run", "P", "--approve", "vaccum"], "vacuum"),
        (["vacuum", "T", "--mode", "lit"], "lite"),
        (["set-properties", "T", "delta.x=true"], "--set delta.x=true"),
        (["upgrade-protocol", "T", "rowTracking"], "--feature rowTracking"),
        (["optimize", "T", "day = '2026-01-01'"], """--where 'day = '"'"'2026-01-01'"'"''"""),
        (["layout", "T", "id>3"], "--where 'id>3'"),
    ],
)
def test_a_misspelt_verb_or_option_is_answered_by_the_one_that_was_meant(
    cli: Any, words: list[str], meant: str
) -> None:
    outcome = cli(*words)
    assert outcome.status == 2 and outcome.out == ""
    assert f"did you mean {meant}?" in outcome.err and outcome.err.count("\n") == 1


def test_an_option_of_another_meaning_is_not_offered(cli: Any) -> None:
    outcome = cli("vacuum", "T", "--where", "day = 1")
    assert outcome.status == 2 and "there is no option --where; see " in outcome.err


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["expire", "T", "event_time", "--older-than", "400 days"], None),
        (["expire", "T", "--older-than", "400 days", "event_time"], None),
        (["expire", "T", "--older-than", "400 days", "--column", "event_time"], None),
        (["expire", "T", "--older-than", "400 days"], "--column COLUMN"),
        (["add-constraint", "T", "positive", "id > 0"], None),
        (["add-constraint", "T", "id > 0", "--name", "positive"], None),
        (["add-constraint", "T", "positive"], "--expression EXPRESSION"),
    ],
)
def test_a_value_is_given_by_its_name_or_by_its_position(
    cli: Any, words: list[str], missing: str | None
) -> None:
    if missing is not None:
        assert f"{missing} is missing" in cli(*words).err
    else:
        values = vars(_parse(words))
        subject = (
            values["column"] if words[0] == "expire" else (values["name"], values["expression"])
        )
        assert subject in ("event_time", ("positive", "id > 0"))


@pytest.mark.parametrize("length", ["10 minutes", "10m", "PT10M"])
@pytest.mark.parametrize("size", ["64 MiB", "64mib", "67108864", "67108.864 kB"])
def test_sizes_and_durations_are_read_in_every_spelling(
    cli: Any, table: str, size: str, length: str
) -> None:
    words = ("--max-bytes", size, "--max-duration", length, "--dry-run", "--json")
    options = cli("optimize", table, *words).document["options"]
    assert (options["max_bytes"], options["max_duration"]) == (64 << 20, "PT10M")


def test_the_name_of_a_flag_precedes_what_is_wrong_with_its_value(cli: Any, table: str) -> None:
    outcome = cli("optimize", table, "--max-bytes", "64 MoB")
    assert outcome.status == 2 and "--max-bytes: '64 MoB' is not a size" in outcome.err


def test_a_quiet_window_that_nothing_waits_for_is_refused(cli: Any, table: str) -> None:
    for words in (("optimize", table), ("run", "--all-due", table)):
        outcome = cli(*words, "--quiet", "10m", "--other-writers", "none")
        assert outcome.status == 2
        assert "--quiet has no effect without --other-writers spark" in outcome.err


def test_the_value_of_an_unknown_option_is_not_repeated(cli: Any) -> None:
    outcome = cli("history", "T", "--pasword=hunter2", "--limit", "1")
    assert outcome.status == 2 and "hunter2" not in outcome.err


def test_a_misspelt_storage_option_is_answered_by_the_one_that_was_meant(cli: Any) -> None:
    outcome = cli("history", "s3://lake/t", "--storage-option", "AWS_ENDPOINT_UR=hunter2")
    assert "did you mean AWS_ENDPOINT_URL?" in outcome.err and "hunter2" not in outcome.err


def test_a_folder_near_a_table_is_answered_by_its_address(
    cli: Any, builder: TableBuilder, tmp_path: Path
) -> None:
    root = Path(builder.store.root)
    (root / "day=1").mkdir()
    for within in (root / "_delta_log", root / "day=1", root / "day=1" / "x"):
        outcome = cli("history", within)
        assert outcome.status == (5 if within.exists() else 2)
        assert outcome.err.rstrip().endswith(f"belongs to, {root}"), outcome.err
    above = cli("history", root.parent)
    assert above.status == 5 and above.err.rstrip().endswith(f"contains {root.name}"), above.err


@pytest.mark.parametrize("verb", ["fsck", "inspect", "vacuum", "files", "run --all-due"])
def test_a_folder_that_does_not_exist_is_wrong_usage(cli: Any, tmp_path: Path, verb: str) -> None:
    outcome = cli(*verb.split(), tmp_path / "nothing")
    assert outcome.status == 2 and "there is no such folder" in outcome.err


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_without_tables_is_named_with_what_is_missing(
    cli: Any, tmp_path: Path, empty: bool
) -> None:
    folder = tmp_path / "lonely"
    folder.mkdir()
    if empty:
        (folder / "_delta_log").mkdir()
    outcome = cli("history", folder)
    assert outcome.status == 5
    assert "_delta_log is missing or empty; check the address" in outcome.err


def test_only_some_of_many_folders_are_searched_for_tables(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_maintenance.policies.tree_search._FOLDERS_BELOW", 8)
    for number in range(5):
        TableBuilder(tmp_path / f"folder-{number}" / "t").commit([protocol(), metadata()])
    outcome = cli("history", tmp_path)
    assert outcome.err.rstrip().endswith("contains folder-0/t, folder-1/t, folder-2/t")


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("delta-maintenance va", ["vacuum "]),
        ("delta-maintenance vacuum T --rete", ["--retention "]),
        ("delta-maintenance vacuum T --mode l", ["lite "]),
    ],
)
def test_shells_complete_verbs_options_and_values(
    tmp_path: Path, line: str, found: list[str]
) -> None:
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    words = [sys.executable, "-m", "delta_maintenance"]
    subprocess.run(words, env=os.environ | asked, check=True, timeout=300)
    assert answer.read_text().split("\n") == found
