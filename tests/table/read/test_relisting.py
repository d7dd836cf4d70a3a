"""Reads that begin anew where a clean-up deletes a listed file."""

from __future__ import annotations

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.table.read.relisting import relisting


@pytest.mark.parametrize("vanishing", [0, 1, 2])
def test_a_read_is_repeated_until_nothing_vanishes(vanishing: int) -> None:
    calls = 0

    def read() -> str:
        nonlocal calls
        calls += 1
        if calls <= vanishing:
            raise FileNotFoundError(2, "gone", f"_delta_log/{calls}.json")
        return "done"

    assert relisting(read) == "done"
    assert calls == vanishing + 1


def test_the_third_file_that_vanishes_is_named() -> None:
    gone = [FileNotFoundError(2, "gone", f"_delta_log/{number}.json") for number in range(3)]
    left = iter(gone)

    def read() -> None:
        raise next(left)

    with pytest.raises(StorageError, match="gone since it was listed; run again") as raised:
        relisting(read)
    assert raised.value.file == "_delta_log/2.json"


def test_other_failures_are_not_repeated() -> None:
    calls = 0

    def read() -> None:
        nonlocal calls
        calls += 1
        raise PermissionError

    with pytest.raises(PermissionError):
        relisting(read)
    assert calls == 1
