"""Exit statuses, the one line of an error, and the purity of stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import delta_maintenance
from delta_maintenance.errors import CommitConflictError, VerificationError
from delta_maintenance.limits import LOG_MEMORY_VARIABLE
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

VERBS = (
    "inspect",
    "files",
    "history",
    "checkpoint",
    "publish",
    "compact-log",
    "clean-log",
    "vacuum",
    "fsck",
    "backfill-row-ids",
    "recompute-stats",
    "upgrade-protocol",
    "set-properties",
    "set-clustering",
    "cluster",
    "add-constraint",
    "drop-feature",
    "health",
    "init",
    "assess",
    "run",
    "acknowledge",
    "approve",
    "spark-spec",
    "spark-stage",
)


def command(*words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "delta_maintenance", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **settings,
    )


def test_help_names_every_verb_and_every_exit_status(cli: Any) -> None:
    outcome = cli("--help-all")
    assert outcome.status == 0 and outcome.err == ""
    assert all(verb in outcome.out for verb in VERBS)
    assert all(f"\n  {status}  " in outcome.out for status in range(6))


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "init"])
def test_the_help_of_a_verb_explains_secrets(cli: Any, verb: str) -> None:
    outcome = cli(verb, "--help")
    assert outcome.status == 0
    assert "Secrets belong in the environment" in " ".join(outcome.out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_page_with_its_options(verb: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli" / f"{verb}.md"
    assert f"\n<!-- generated: cli-options {verb} -->\n" in page.read_text()


@pytest.mark.process
def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    heavy = ("pyarrow", "numpy", "pydantic", "fsspec", "rich", "pyspark")
    code = f"""
import sys
from delta_maintenance.cli.main import main
assert main(["checkpoint", "--help"]) == 0
loaded = [name for name in {heavy!r} if name in sys.modules]
sys.exit(f"loaded {{loaded}}" if loaded else 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def loaded_by(*commands: list[str]) -> set[str]:
    """Returns the modules that a process loads for these commands.

    Status 5 is included: `fsck` reports a table without its data files.
    """
    code = f"""
import json, sys
from delta_maintenance.cli.main import main
assert {{main(words) for words in {commands!r}}} <= {{0, 5}}
print(json.dumps(list(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.process
def test_compacting_a_log_imports_only_what_it_needs(table: str) -> None:
    loaded = loaded_by(["compact-log", table, "--commits-per-file", "3"])
    assert "delta_maintenance.table.write.log_compactor" in loaded
    assert not loaded & {
        "pydantic",
        "pyarrow.parquet",
        "pyspark",
        "fsspec",
        "delta_maintenance.operations.vacuum",
        "delta_maintenance.storage.azure.options",
    }


@pytest.mark.process
def test_a_verb_for_an_address_enters_no_catalog(table: str) -> None:
    loaded = loaded_by(["checkpoint", table], ["vacuum", table, "--dry-run"])
    assert "delta_maintenance.storage.local.store" in loaded
    assert {name for name in loaded if name.startswith("delta_maintenance.catalogs")} == set()


@pytest.mark.process
def test_only_instants_and_durations_in_json_load_pydantic(table: str) -> None:
    asked = [
        ["inspect", table],
        ["history", table],
        ["health", table],
        ["fsck", table],
        ["compact-log", table, "--json"],
        *(
            [verb, table, *words, "--dry-run"]
            for verb, *words in (
                ["checkpoint"],
                ["clean-log"],
                ["vacuum", "--ignore-missing-files"],
                ["backfill-row-ids"],
                ["upgrade-protocol", "--feature", "v2Checkpoint"],
                ["add-constraint", "positive", "id > 0"],
            )
        ),
    ]
    assert "pydantic" not in loaded_by(*asked)
    assert "pydantic" in loaded_by(["optimize", table, "--dry-run", "--json"])


@pytest.mark.parametrize(
    "words",
    [
        ("explode", "T"),
        ("inspect", "T", "U"),
        ("files",),
        ("files", "T", "--version", "one"),
        ("files", "T", "--vers", "1"),
        ("files", "T", "--version", "1", "--timestamp", "2026-01-31T12:00:00Z"),
        ("history", "T", "--limit", "0"),
        ("checkpoint", "T", "--kind", "v3"),
        ("checkpoint", "T", "--actions-per-sidecar", "-1"),
        ("checkpoint", "T", "--spark-conf", "novalue"),
        ("inspect", "T", "--nonsense\nwith a second line"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line_that_points_to_the_help(
    cli: Any, words: tuple[str, ...]
) -> None:
    outcome = cli(*words)
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith("delta-maintenance: ")
    assert outcome.err.count("\n") == 1
    assert "--help'" in outcome.err


def test_a_malformed_storage_option_is_not_repeated(cli: Any) -> None:
    outcome = cli("inspect", "s3://bucket/table", "--storage-option", "hunter2")
    assert outcome.status == 2
    assert "hunter2" not in outcome.err


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("deltars-err-table_d", 3, "catalogOwned"),
        ("deltars-err-table_c", 5, "00000000000000000012.json"),
        ("kernelrs-golden-no-delta-log-folder", 5, "_delta_log"),
        ("golden-deltalog-invalid-protocol-version", 3, "reader"),
    ],
)
@pytest.mark.parametrize("verb", ["inspect", "files", "checkpoint"])
def test_a_table_that_cannot_be_opened_gives_one_line_and_its_status(
    cli: Any, corpus: Path, verb: str, name: str, status: int, words: str
) -> None:
    # The dry run, since the corpus must not change whatever happens.
    dry_run = ["--dry-run"] if verb == "checkpoint" else []
    outcome = cli(verb, corpus / name, *dry_run)
    assert outcome.status == status
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"delta-maintenance: table {corpus / name}")
    assert words in outcome.err


@pytest.mark.parametrize(
    "verb",
    [
        verb
        for verb in VERBS
        if not verb.startswith("spark-")
        # The commits of a table at an address go through no catalog.
        and verb not in ("init", "assess", "run", "approve", "acknowledge", "publish")
    ],
)
def test_an_address_without_a_table_is_status_5(cli: Any, tmp_path: Path, verb: str) -> None:
    needed = {
        "drop-feature": ("--feature", "v2Checkpoint"),
        "add-constraint": ("positive", "id > 0"),
    }.get(verb, ())
    outcome = cli(verb, tmp_path, *needed, "--json")
    assert (outcome.status, outcome.out) == (5, "")
    assert str(tmp_path) in outcome.err


@pytest.mark.parametrize("verb", ["inspect", "files", "checkpoint"])
def test_a_version_that_does_not_exist_is_status_2(cli: Any, table: str, verb: str) -> None:
    for version in ("3", "-1", "99999999999999999999999"):
        outcome = cli(verb, table, "--version", version)
        assert (outcome.status, outcome.out) == (2, ""), version
        assert f"version {version} does not exist" in outcome.err


def test_a_damaged_line_names_the_table_too(cli: Any, builder: TableBuilder) -> None:
    builder.commit(['{"add":{"path":7,"size":1}}'])
    outcome = cli("files", builder.store.root)
    assert outcome.status == 5
    assert builder.store.root in outcome.err and "00000000000000000003.json" in outcome.err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommitConflictError("another writer won", remedy="run again"), 4),
        (VerificationError("it does not read back"), 1),
        (RuntimeError("boom\nin two lines"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_way_to_fail_is_one_line_and_a_status(
    cli: Any, table: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(delta_maintenance, "open_table", fail, raising=False)
    outcome = cli("inspect", table)
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("delta-maintenance: ")


def test_only_verbose_shows_a_traceback_and_the_line_comes_last(cli: Any, tmp_path: Path) -> None:
    assert "Traceback" not in cli("inspect", tmp_path).err
    verbose = cli("inspect", tmp_path, "-v").err
    assert "Traceback" in verbose
    assert verbose.splitlines()[-1].startswith("delta-maintenance: table ")


def test_an_unexpected_error_refers_to_verbose(
    cli: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(delta_maintenance, "open_table", fail, raising=False)
    assert "ZeroDivisionError: by zero; run again with -v" in cli("inspect", table).err
    assert "again with -v" not in cli("inspect", table, "-v").err


def test_escape_sequences_of_a_table_never_reach_the_terminal(
    cli: Any, builder: TableBuilder
) -> None:
    builder.commit([{"commitInfo": {"operation": "\x1b[31mWRITE\r\x07", "engineInfo": "[bold]x"}}])
    history = cli("history", builder.store.root)
    assert "\x1b" not in history.out and "\x07" not in history.out
    assert r"\x1b[31mWRITE" in history.out and "[bold]x" in history.out
    outcome = cli("inspect", builder.store.root + "\x1b[31m")
    assert "\x1b" not in outcome.err


def test_skipped_files_are_warnings_on_stderr(cli: Any, builder: TableBuilder) -> None:
    builder.truncate(builder.checkpoint(1)[0], 100)
    outcome = cli("inspect", builder.store.root, "--json")
    assert outcome.status == 0
    assert outcome.err.startswith("delta-maintenance: warning: skipped ")
    assert outcome.document["log"]["checkpoint"] is None
    assert len(outcome.document["log"]["warnings"]) == 1


@pytest.mark.process
def test_a_process_prints_the_result_on_stdout_and_nothing_else(builder: TableBuilder) -> None:
    builder.truncate(builder.checkpoint(1)[0], 100)
    run = command("checkpoint", builder.store.root, "--json", "-v")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["status"] == "written"
    assert "warning: skipped" in run.stderr


@pytest.mark.process
def test_a_process_ends_with_the_status_of_the_error(tmp_path: Path) -> None:
    run = command("files", str(tmp_path))
    assert (run.returncode, run.stdout) == (5, "")
    assert run.stderr.count("\n") == 1


@pytest.mark.process
def test_a_closed_stdout_ends_the_command_quietly(table: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # Little enough output to stay in the buffer until it is flushed.
    run = subprocess.run(
        [sys.executable, "-m", "delta_maintenance", "files", table],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (run.returncode, run.stderr) == (141, b"")


@pytest.mark.process
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(builder: TableBuilder) -> None:
    builder.commit([add(f"{'x' * 100}{number}") for number in range(20_000)])
    with subprocess.Popen(
        [sys.executable, "-m", "delta_maintenance", "files", builder.store.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["size"]
        process.stdout.close()
        assert process.stderr.read() == b""
        # The status that shells report for a program ended by SIGPIPE: the list is incomplete.
        assert process.wait(300) == 141


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.process
def test_a_commit_succeeds_with_standard_streams_that_the_parent_closed(
    table: str, closed: str
) -> None:
    run = subprocess.run(
        ["sh", "-c", f'"$0" -m delta_maintenance checkpoint "$1" --json {closed}']
        + [sys.executable, table],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "" if ">&-" in closed.split() else json.loads(run.stdout)
    assert list((Path(table) / "_delta_log").glob("*.checkpoint.*"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.process
def test_a_full_disk_under_stdout_is_a_failure(table: str) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "delta_maintenance", "files", table],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr.startswith("delta-maintenance: OSError")


@pytest.mark.process
def test_a_terminal_without_unicode_gets_escapes_instead_of_a_failure(
    builder: TableBuilder,
) -> None:
    builder.commit([{"commitInfo": {"operation": "Größe 😈"}}])
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    run = command("history", builder.store.root, env=environment, encoding="latin-1")
    assert run.returncode == 0, run.stderr
    assert r"Größe \U0001f608" in run.stdout


def test_the_memory_for_one_file_of_a_log_is_an_option(cli: Any, tmp_path: Path) -> None:
    line = (
        '{"add":{"path":"%s","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}'
    )
    builder = TableBuilder(tmp_path)
    builder.commit([protocol(), metadata()])
    text = "\n".join(line % f"{number:090}" for number in range(130_000))
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(text)
    assert len(text) > (64 << 20) // 3

    small = cli("inspect", tmp_path, "--log-memory", "64MiB")
    assert small.status == 5 and "--log-memory" in small.err
    assert LOG_MEMORY_VARIABLE not in os.environ
    assert (
        cli("inspect", tmp_path, "--log-memory", "256MiB", "--json").document["num_files"]
        == 130_000
    )
    wrong = cli("inspect", tmp_path, "--log-memory", "1KiB")
    assert wrong.status == 2 and "at least 64MiB" in wrong.err
