"""Plans that expired, clocks that disagree, other processes, and deletions that fail."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError, StorageAccessError
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import classic_checkpoint_name, commit_name
from delta_maintenance.storage import MemoryStore
from tests.support.operations.log_clean_ups import (
    at,
    build,
    clean,
    day,
    names,
    plan,
    promised,
    with_sidecars,
)
from tests.support.tables.actions import metadata
from tests.support.tables.table_builder import LOG


def test_a_plan_is_valid_for_an_hour() -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    before = names(table)
    for late in (timedelta(hours=1, seconds=1), timedelta(days=1), -timedelta(hours=2)):
        with pytest.raises(RefusedError, match="a plan is valid for an hour"):
            clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51) + late)))
    assert names(table) == before
    late = day(51) + timedelta(minutes=59)
    assert (
        clean_log.apply(table.open(), planned, context=RunContext.at(at(table, late))).status
        == "cleaned"
    )


def test_a_plan_without_its_checkpoint_is_refused() -> None:
    table = build()
    table.checkpoint(9)
    table.checkpoint(18)
    planned = plan(table, day(51))
    table.drop(classic_checkpoint_name(18))
    before = names(table)
    with pytest.raises(RefusedError, match="would now be cut off at 00000000000000000009"):
        clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    table.drop(classic_checkpoint_name(9))
    with pytest.raises(RefusedError, match="at no checkpoint"):
        clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    assert [name for name in before if name not in names(table)] == [classic_checkpoint_name(9)]


@pytest.mark.parametrize("skew", [timedelta(minutes=6), -timedelta(days=400)])
def test_clocks_that_disagree_stop_everything(skew: timedelta) -> None:
    table = build()
    table.checkpoint(18)
    planned = plan(table, day(51))
    before = names(table)
    at(table, day(51) + skew)
    with pytest.raises(RefusedError, match="clocks of the store and of this machine differ"):
        clean_log.apply(table.open(), planned, context=RunContext.at(day(51)))
    assert names(table) == before


def test_a_retention_that_is_lengthened_after_the_plan_is_respected() -> None:
    table = build()
    table.checkpoint(5)
    table.checkpoint(18)
    planned = plan(table, day(51))
    longer = metadata(configuration={"delta.logRetentionDuration": "interval 40 days"})
    table.commit([longer], at_ms=epoch_millis(day(51)))
    with pytest.raises(RefusedError, match="plan again"):
        clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))


def test_two_clean_ups_of_one_plan_do_no_harm() -> None:
    table = with_sidecars()
    planned = plan(table, day(51))
    with promised(table, 18):
        first = clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
        second = clean_log.apply(table.open(), planned, context=RunContext.at(at(table, day(51))))
    assert (first.status, second.status) == ("cleaned", "cleaned")
    assert sum(group.deleted for group in second.groups) == 0


class Stubborn(MemoryStore):
    """Does not delete files of these names."""

    stuck: frozenset[str] = frozenset()

    def delete(self, path: str) -> None:
        if path.removeprefix(f"{LOG}/") in self.stuck:
            raise StorageAccessError("not allowed", file=path)
        super().delete(path)


@pytest.mark.conformance("CLEAN-11")
def test_an_undeletable_file_is_reported_and_its_dependencies_are_kept() -> None:
    store = Stubborn()
    table = build()
    for path in names(table):
        store.now_ms = lambda path=path: table.store.stat(f"{LOG}/{path}").modified_ms
        store.put(f"{LOG}/{path}", table.read(path))
    table.store = store
    table.checkpoint(9)
    table.checkpoint(18)
    store.stuck = frozenset({commit_name(3), commit_name(7)})
    with promised(table, 18):
        result = clean(table, day(51))
    assert result.status == "partly" and result.failed == 2
    assert result.failures == tuple(f"{LOG}/{commit_name(v)}: not allowed" for v in (3, 7))
    assert [(group.kind, group.planned, group.deleted) for group in result.groups] == [
        ("commits", 18, 16)
    ]
    assert classic_checkpoint_name(9) in names(table)
    store.stuck = frozenset()
    assert clean(table, day(51)).status == "cleaned"
    assert names(table)[0] == classic_checkpoint_name(18)
