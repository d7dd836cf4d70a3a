"""An operation without a policy as a run, also if it fails."""

from __future__ import annotations

import pytest

from delta_maintenance.ledger.one_operation import recording
from delta_maintenance.operations.core import find
from delta_maintenance.policies import RunResult
from delta_maintenance.storage import MemoryStore

NAME = "uc://main.sales.orders"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_failure_has_the_address_of_the_table_if_it_was_opened(is_open: bool) -> None:
    store, delivered = MemoryStore(), list[RunResult]()
    failure = OSError("gone")
    with (
        pytest.raises(OSError, match="gone") as raised,
        recording(find("checkpoint"), delivered.append, name=lambda: NAME, plans=False) as one,
    ):
        if is_open:
            one.measure(store)
        raise failure
    assert raised.value is failure
    (result,) = delivered
    assert (result.name, result.uri) == (NAME, store.root if is_open else NAME)
    assert result.outcomes[0].status == "failed"
