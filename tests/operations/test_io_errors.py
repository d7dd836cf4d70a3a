"""A disk that cannot read or write: the verb says so with the file, and nothing is lost.

`DELTA_MAINTENANCE_IO_ERRORS` is the number of errors of each verb; `make nightly` plays all verbs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.storage.local import LocalStore
from tests.operations.io_errors import ALL, FailingDisk, compiler, failing_disk
from tests.operations.visible_kills import build
from tests.support.suite.play import some

ERRORS = int(os.environ.get("DELTA_MAINTENANCE_IO_ERRORS", "1"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingDisk]:
    if compiler() is None:
        pytest.skip("NO C COMPILER: the library that lets calls fail cannot be built")
    with failing_disk(tmp_path_factory.mktemp("io")) as ours:
        yield ours


@pytest.mark.process
@pytest.mark.parametrize("verb", some(ALL, 7))
def test_a_failed_call_is_reported_and_the_next_run_completes(
    disk: FailingDisk, verb: str, count_cases: Callable[[str, int], None]
) -> None:
    for number in range(ERRORS):
        disk.fail(verb, number)
    count_cases(f"input/output errors, {verb}", ERRORS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"_delta_log/{9:020}.checkpoint.parquet", ["inspect"]),
        (f"_delta_log/{9:020}.checkpoint.parquet", ["fsck", "--repair"]),
        (f"_delta_log/{13:020}.json", ["checkpoint"]),
        ("part-00003-c000.snappy.parquet", ["fsck", "--deep"]),
        ("part-00003-c000.snappy.parquet", ["optimize"]),
    ],
)
def test_a_file_that_the_disk_cannot_read_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, words: list[str]
) -> None:
    build(tmp_path, clock.now(), damaged=False)
    before = sorted(tmp_path.rglob("*"))
    opened = LocalStore._open

    def failing(store: LocalStore, path: str) -> tuple[int, int]:
        descriptor, size = opened(store, path)
        if path == name:
            os.close(descriptor)
            # Every read fails, and a seek does not.
            descriptor = os.open(tmp_path / path, os.O_WRONLY)
        return descriptor, size

    monkeypatch.setattr(LocalStore, "_open", failing)
    status = main([words[0], str(tmp_path), *words[1:]])
    told = capsys.readouterr().err
    assert status == 1, told
    assert name in told and "Bad file descriptor" in told and "repair the file system" in told
    assert sorted(tmp_path.rglob("*")) == before
