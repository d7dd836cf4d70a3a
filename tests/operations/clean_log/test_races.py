"""A clean-up beside writers of checkpoints: what came into use since it was planned stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import SIDECAR_DIRECTORY, uuid_checkpoint_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.tables.actions import add, checkpoint_metadata, features, metadata, sidecar
from tests.support.tables.table_builder import LOG, UUID, TableBuilder, log_text

FIRST = datetime(2024, 3, 1, 12, tzinfo=UTC)
NOW = FIRST + timedelta(days=40)
ORPHAN = f"{SIDECAR_DIRECTORY}/2-{UUID}-0.parquet"


class Racing(MemoryStore):
    """Publishes a checkpoint on an old sidecar in the moment when the first file is deleted."""

    published: bytes | None = None

    def delete(self, path: str) -> None:
        if self.published is not None and path.endswith(".json"):
            data, self.published = self.published, None
            self.put_if_absent(f"{LOG}/{uuid_checkpoint_name(3, UUID, 'json')}", data)
        super().delete(path)


def test_a_sidecar_that_is_reused_during_the_clean_up_is_kept() -> None:
    table = TableBuilder(Racing())
    for version in range(4):
        lines = [features("v2Checkpoint"), metadata()] if version == 0 else []
        at_ms = epoch_millis(FIRST + timedelta(days=version))
        table.commit([*lines, add(f"f{version}")], at_ms=at_ms)
    table.checkpoint(2)
    # The sidecars of a checkpoint of version 3 that a slow writer has not published yet.
    _, written = table.v2_checkpoint(3, sidecars=1)
    size = len(table.read(written))
    table.write(ORPHAN, table.read(written), at_ms=epoch_millis(FIRST))
    table.drop(written, uuid_checkpoint_name(3, UUID, "json"))
    store = table.store
    assert isinstance(store, Racing)
    store.now_ms = lambda: epoch_millis(NOW)
    others = [a for a in table.state(3) if "add" not in a]
    name = ORPHAN.rpartition("/")[2]
    store.published = log_text([checkpoint_metadata(3), *others, sidecar(name, size)])

    planned = clean_log.plan(Table(store).snapshot(), context=RunContext.at(NOW))
    assert {"commits", "sidecars"} <= {group.kind for group in planned.groups}
    result = clean_log.apply(Table(store), planned, context=RunContext.at(NOW))

    assert result.status == "cleaned" and store.published is None
    assert store.stat(f"{LOG}/{ORPHAN}") is not None
    snapshot = Table(store).snapshot()
    assert snapshot.log.checkpoint is not None and snapshot.log.checkpoint.files.version == 3
    assert sorted(snapshot.live_files()["path"].to_pylist()) == ["f0", "f1", "f2", "f3"]
