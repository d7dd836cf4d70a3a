"""Text for people, and progress that stays off stdout."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance import clock
from delta_maintenance.cli.output import ProgressLine, print_fields, print_named, print_table
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import count_text, size_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines  and\ttabs", "two lines and tabs"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("Größe 😈", "Größe 😈"),
        ("right\u202eleft", r"right\u202eleft"),
    ],
)
def test_text_of_a_table_is_shown_on_one_line_without_control_characters(
    text: str, shown: str
) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_title_is_not_parsed_as_markup(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    print_fields("s3://lake/[bold]events:eyes:", {"version": 1})
    assert "s3://lake/[bold]events:eyes:" in out.getvalue()
    assert out.isatty() == ("╭" in out.getvalue())


def test_a_value_is_on_one_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    path = "part=1/" * 60
    print_fields("t", {"path": path, "reasons": ("one", "two"), "none": None, "size": 12345})
    assert capsys.readouterr().out.splitlines() == [
        "t",
        f"  path     {path}",
        "  reasons  one",
        "           two",
        "  size     12,345",
    ]


def test_an_instant_is_shown_as_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields("", {"from": datetime(2026, 1, 31, 12, tzinfo=UTC), "to": None})
    assert "from  2026-01-31T12:00:00Z" in capsys.readouterr().out


def test_numbers_and_instants_for_people() -> None:
    assert (count_text(1, "file"), count_text(2000, "file")) == ("1 file", "2,000 files")
    assert size_text(3_400_000) == "3.2 MiB"


def test_long_names_have_lines_of_their_own_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = f"uc://prod.sales.{'x' * 255}"
    why = "5 commits since the checkpoint of version 0, of 2 allowed"
    rows = [(name, "checkpoint", why), ("", "vacuum", why), ("[b]short", "fsck", "due")]
    for out in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", out)
        print_named(("table", "operation", "why"), rows)
        lines = out.getvalue().splitlines()
        assert (name in lines) == out.isatty()
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_named(("table", "operation", "why"), rows)
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert lines[0] == "table" and lines[1].split() == ["operation", "why"]
    assert lines.count(name) == 1 and lines.count("[b]short") == 1
    assert f"    checkpoint  {why}" in lines and f"    vacuum      {why}" in lines
    assert all(len(line) <= 80 for line in lines if line != name)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_named(("table", "operation", "why"), rows[2:])
    assert "[b]short" not in terminal.getvalue().splitlines(), "it fits beside its columns"


def test_a_path_is_the_last_column_and_unbroken_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path, columns = f"day=2026-08-01/part-{'0' * 80}.parquet", ("kind", "problem", "path")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_table(columns, [("log-gap", "the file is missing " * 6, path)])
    lines = terminal.getvalue().splitlines()
    assert lines[-1].strip() == path
    assert all(len(line) <= 80 for line in lines[:-1])
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_table(columns, [("log-gap", "missing", "a.parquet")])
    assert "a.parquet" in next(line for line in terminal.getvalue().splitlines() if "gap" in line)


def test_progress_of_long_work_is_a_line_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: instant)
    with ProgressLine() as progress:
        progress("reading", 1, 10)
        instant += timedelta(seconds=6)
        progress("reading", 2000, 3000)
        progress("reading", 2001, 3000)
        instant += timedelta(seconds=6)
        progress("writing", 7_000_000, None, unit="bytes")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "delta-maintenance: reading: 2,000 of 3,000, about 3 seconds left",
        "delta-maintenance: writing: 6.7 MiB",
    ]


def test_progress_on_a_terminal_is_drawn_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressLine() as progress:
        progress("writing sidecars", 1, 3)
        progress("writing sidecars", 3, 3)
        progress("rewriting", 2_000_000, 3_000_000, unit="bytes")
    assert "writing sidecars" in terminal.getvalue()
    assert "1.9 MiB of 2.9 MiB" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_progress_of_several_tables_states_how_many_are_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: instant)
    with ProgressLine() as progress:
        tables = progress.of_tables(35)
        tables.end()
        instant += timedelta(seconds=6)
        tables.of("sales/orders")("commits", 1, 9)
        tables.of("sales/items")("commits", 5, 9)
        tables.end()
    assert capsys.readouterr().err.splitlines() == [
        "delta-maintenance: 1 of 35 tables; sales/orders: commits: 1 of 9"
    ]
