"""`DeltaTable`: the table as an object, with one method for each operation."""

from __future__ import annotations

import pydoc
import re
import sys
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import delta_maintenance
from delta_maintenance import DeltaTable
from delta_maintenance.cli.main import main
from delta_maintenance.delta_table.methods import operation_method
from delta_maintenance.errors import InvalidRequestError, NotADeltaTableError, RefusedError
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.operations.core import (
    BUILT_IN,
    find,
    flag_fields,
    register,
    replace_flags,
    unregister,
)
from delta_maintenance.operations.optimize import OptimizePlan, OptimizeResult
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumPlan
from delta_maintenance.storage import open_store

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import method_stubs  # noqa: E402  a tool, not a package

_SETTINGS = {"self", "dry_run", "version", "report", "policy"}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    for value in range(12):
        write_deltalake(tmp_path / "t", pa.table({"x": [value]}), mode="append")
    return DeltaTable(tmp_path / "t")


def test_every_operation_is_a_method_with_the_options_of_its_record() -> None:
    for name in BUILT_IN:
        record = find(name)
        method = getattr(DeltaTable, name.replace("-", "_"))
        found = set(signature(method).parameters) - _SETTINGS
        assert found == {field.name for field in flag_fields(record.options)}
        assert all(f"    {each}: " in method.__doc__ for each in found)


def test_docstrings_speak_python_in_80_columns() -> None:
    for name in BUILT_IN:
        text = pydoc.plain(pydoc.render_doc(getattr(DeltaTable, name.replace("-", "_"))))
        _, _, docstring = text.partition("\n    ")
        assert "--" not in docstring, name
        assert max(map(len, docstring.splitlines())) <= 80, name


@pytest.mark.process
def test_the_stub_states_the_methods_of_the_records() -> None:
    assert method_stubs.STUB.read_text() == method_stubs.text(), "run tools/method_stubs.py"


def test_a_dry_run_returns_the_plan_and_changes_nothing(table: DeltaTable) -> None:
    plan = table.optimize(dry_run=True)
    assert isinstance(plan, OptimizePlan)
    assert (plan.files, plan.files_after, table.version()) == (12, 1, 11)


def test_a_method_applies_its_plan(table: DeltaTable) -> None:
    result = table.optimize()
    assert isinstance(result, OptimizeResult)
    assert (result.status, table.version()) == ("rewritten", 12)
    assert table.files()["num_records"].to_pylist() == [12]
    assert sorted(table.files(version=11)["num_records"].to_pylist()) == [1] * 12


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["health"], ["optimize", "--dry-run"], ["fsck"]]
)
def test_a_document_prints_what_the_command_line_prints(
    arguments: list[str], table: DeltaTable, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *flags = arguments
    document = getattr(table, verb)(**({"dry_run": True} if flags else {}))
    assert main([verb, table.uri, *flags]) == 0
    printed = capsys.readouterr().out
    # Tables are as wide as the place where they are shown.
    assert _words(replace_flags(printed, verb)) == _words(str(document))


def _words(text: str) -> list[str]:
    return [word for word in text.split() if not set(word) <= {"─"}]


def test_a_notebook_shows_tables_without_markup_from_names(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)"
    write_deltalake(folder, pa.table({"x": [1]}))
    table = DeltaTable(folder)
    for document in (table.health(), table.history(), table.inspect(), table.optimize()):
        html: Any = document._repr_html_()
        assert "<table>" in html
        # Notebooks align a cell without a style to the right.
        assert not re.search(r"<t[hd]\b(?! style=.text-align:left)", html)
        assert "<script>" not in html
    assert "&lt;script&gt;" in table.health()._repr_html_()


def test_every_object_has_a_line_of_its_own(table: DeltaTable) -> None:
    uri, plan = table.uri, table.optimize(dry_run=True)
    assert repr(table) == f"DeltaTable({uri!r})"
    assert repr(table.table) == f"Table({uri!r})"
    assert repr(table.snapshot(version=3)) == f"Snapshot({uri!r}, version=3)"
    assert repr(table.history(limit=2)) == f"<CommitHistory: {uri}, 2 commits>"
    assert repr(table.inspect()) == f"<Description: {uri}, version 11>"
    assert repr(table.health()).startswith(f"<TableHealth: {uri}, version 11 of 20")
    assert repr(plan) == f"<OptimizePlan: table {uri}, version 11: {plan.reason}>"
    # As messages of errors and containers show it.
    assert f"{[table.optimize()]}" == f"[<OptimizeResult: table {uri}, version 12: rewritten>]"


def test_a_text_has_no_escape_sequences_where_a_kernel_asks_for_colors(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the kernel of Jupyter sets them.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    assert "version" in str(table.history()) and "\x1b" not in str(table.history())


@pytest.mark.parametrize("text", ["7d", "7 days", "P7D", "168h", "1w", "6d 24h"])
def test_a_duration_may_be_a_text(text: str) -> None:
    seen = []

    def prepare(_: object, options: VacuumOptions, **__: object) -> Any:
        seen.append(options.retention)
        raise RefusedError("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(find("vacuum")),
            "prepare",
            lambda _, table, options, context: prepare(table, options),
        )
        with pytest.raises(RefusedError):
            DeltaTable("/t").vacuum(retention=text)
    assert seen == [timedelta(days=7)]


@pytest.mark.parametrize(
    "text", ["", "7", 7, 7.5, "d", "-7d", "7 years", "P", "7d x", "9" * 30 + "d"]
)
def test_a_wrong_duration_names_the_forms(text: Any) -> None:
    with pytest.raises(InvalidRequestError, match="is not a duration; write it like '7d'"):
        DeltaTable("/t").vacuum(retention=text)


def test_a_size_may_be_a_text(table: DeltaTable) -> None:
    plan = table.optimize(max_bytes="64 MiB", dry_run=True)
    assert isinstance(plan, OptimizePlan) and plan.options.max_bytes == 64 << 20


def test_a_policy_of_the_table_is_a_warning_or_kept(
    table: DeltaTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\ntables:\n- uri: {table.uri}\n  keep: [{{name: audit, version: 3, why: w}}]\n"
    )
    monkeypatch.setenv("DELTA_MAINTENANCE_POLICY", str(policy))
    table.vacuum(dry_run=True)
    (warning,) = caplog.messages
    assert "keeps versions or files of it (kept version audit)" in warning
    assert warning.endswith(f"give the option policy {policy}")
    caplog.clear()
    table.checkpoint(dry_run=True)
    plan = table.vacuum(dry_run=True, policy=str(policy))
    assert isinstance(plan, VacuumPlan) and not caplog.messages
    assert [version.name for version in plan.options.holders.keep] == ["audit"]
    monkeypatch.delenv("DELTA_MAINTENANCE_POLICY")
    with pytest.raises(InvalidRequestError, match="leave out the option policy"):
        DeltaTable(tmp_path / "other").vacuum(policy=str(policy))


def test_errors_are_those_of_the_operations(table: DeltaTable, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=f"table {table.uri}.*shorter than 7 days"):
        table.vacuum(retention="1h")
    with pytest.raises(NotADeltaTableError):
        DeltaTable(tmp_path / "none").health()
    with pytest.raises(
        TypeError, match=r"vacuum\(\) got an .* 'retentoin'. Did you mean 'retention'"
    ):
        table.vacuum(retentoin="7d")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match=r"name columns with the option by\b"):
        table.cluster()
    with pytest.raises(InvalidRequestError, match="the option quiet has no effect without"):
        table.vacuum(quiet="1h")
    with pytest.raises(TypeError, match=r"argument 'colour'$"):
        table.vacuum(colour="red")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"too many positional arguments; give the options by"):
        table.vacuum("7d")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match=r"needs Spark; give DeltaTable a session"):
        table.vacuum(engine="spark")


def test_credentials_of_an_address_are_not_shown() -> None:
    table = DeltaTable(
        "s3://bucket/t", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "canary"}
    )
    assert "canary" not in f"{table!r}{vars(table).get('uri')}"


def test_names_are_listed_where_they_can_be_used(table: DeltaTable) -> None:
    names = [name for name in dir(table) if not name.startswith("_")]
    assert {"vacuum", "clean_log", "health", "history"} <= set(names)
    # A table that was opened by its address has no name in a catalog.
    assert [name for name in names if getattr(table, name) is None] == ["catalog_name"]
    assert {"DeltaTable", "open_table"} <= set(dir(delta_maintenance))
    with pytest.raises(AttributeError, match=r"'vacum'. Did you mean: 'vacuum'\?"):
        table.vacum  # noqa: B018


def test_an_operation_of_another_distribution_is_a_method(table: DeltaTable) -> None:
    from dataclasses import replace

    register(replace(find("optimize"), name="touch-up"))
    try:
        assert "touch_up" in dir(table)
        assert table.touch_up(dry_run=True).files == 12
        assert operation_method(find("touch-up")).__name__ == "touch_up"
    finally:
        unregister("touch-up")


def test_operations_are_recorded_in_a_ledger(table: DeltaTable, tmp_path: Path) -> None:
    recording = DeltaTable(table.uri, ledger=tmp_path / "ledger")
    recording.optimize(dry_run=True)
    recording.optimize()
    with pytest.raises(InvalidRequestError):
        recording.erasure_report("no condition")
    columns = ("started_at", "operation", "outcome", "done_by", "table_name", "error")
    found = LedgerTable(open_store(str(tmp_path / "ledger"))).read(columns).sort_by("started_at")
    rows = found.drop_columns("started_at").to_pylist()
    assert "the condition" in rows[2].pop("error")
    common = {"done_by": "python", "table_name": table.uri}
    assert rows == [
        {"operation": "optimize", "outcome": "planned", "error": None, **common},
        {"operation": "optimize", "outcome": "done", "error": None, **common},
        {"operation": "erasure-report", "outcome": "failed", **common},
    ]


def test_a_ledger_that_is_down_costs_one_warning(
    table: DeltaTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    result = DeltaTable(table.uri, ledger=tmp_path / "ledger").optimize()
    assert isinstance(result, OptimizeResult) and result.status == "rewritten"
    (warning,) = caplog.messages
    assert "the ledger was not written" in warning and "its rows are lost" in warning
    with pytest.raises(InvalidRequestError, match="plain address"):
        DeltaTable(table.uri, ledger="s3://user:hunter2@lake/ledger")
