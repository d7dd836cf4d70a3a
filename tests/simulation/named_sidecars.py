"""A sidecar engine whose sidecars all have the same contents, so that a checkpoint costs little.

Races between checkpoints and clean-ups are about the existence of files and not about what is in
them. Whether a sidecar counts as touched is drawn by chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.actions import Sidecar
from delta_maintenance.protocol.delta_log import SidecarSummary, stated_summary
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Snapshot, Table
from delta_maintenance.table.read.sidecar_search import SearchedSidecar
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec
from delta_maintenance.table.write.sidecar_reuse import (
    ReuseSurvey,
    require_reusable,
    survey_sidecars,
)
from delta_maintenance.table.write.sidecar_writer import SidecarReport, SidecarSet, taken_over
from tests.support.tables.actions import add, features, metadata
from tests.support.tables.table_builder import EPOCH_MS, LOG, log_text

_TOUCHED = 0.3
_MOST_NEW = 2


class NamedSidecars:
    """A `SidecarEngine` on any store."""

    def __init__(self, chance: random.Random, new_id: Callable[[], str]) -> None:
        self._chance = chance
        self._new_id = new_id

    def survey(self, snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
        base = require_reusable(snapshot, spec)
        found = []
        for sidecar, path in zip(base.sidecars, base.sidecar_paths, strict=True):
            summary = stated_summary(sidecar)
            assert summary is not None
            is_named = self._chance.random() < _TOUCHED
            found.append(SearchedSidecar(sidecar, path, summary, is_named))
        return survey_sidecars(base, found, spec, expired={}, adds=1, tombstones=0)

    def write_sidecars(
        self, snapshot: Snapshot, spec: CheckpointSpec, *, reuse: ReuseSurvey | None = None
    ) -> SidecarSet:
        data, summary = contents()
        reports = []
        for _ in range(self._chance.randint(1, _MOST_NEW)):
            name = f"{self._new_id()}.parquet"
            path = f"{LOG}/_sidecars/{name}"
            with snapshot.log.store.create(path) as file:
                file.write(data)
            status = snapshot.log.store.stat(path)
            assert status is not None
            sidecar = Sidecar(
                path=name, size_in_bytes=status.size, modification_time=status.modified_ms
            )
            reports.append(SidecarReport.of(sidecar, summary))
        kept = () if reuse is None else taken_over(reuse)
        return SidecarSet(reports=tuple(reports), expired_tombstones=0, taken_over=kept)


_CONTENTS: list[tuple[bytes, SidecarSummary]] = []


def contents() -> tuple[bytes, SidecarSummary]:
    """A sidecar with one file, as the library writes it."""
    if not _CONTENTS:
        store: Store = MemoryStore()
        lines = [
            features("v2Checkpoint"),
            metadata(configuration={"delta.checkpointPolicy": "v2"}),
            add("f"),
        ]
        store.put_if_absent(f"{LOG}/{0:020}.json", log_text(lines))
        table, now = Table(store), datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
        options = CheckpointOptions(incremental="never")
        checkpoint.apply(
            table, checkpoint.plan(table.snapshot(), options, context=RunContext.at(now))
        )
        opened = table.snapshot().log.checkpoint
        assert opened is not None
        [sidecar] = opened.sidecars
        summary = stated_summary(sidecar)
        assert summary is not None
        _CONTENTS.append((store.read(opened.sidecar_paths[0]), summary))
    return _CONTENTS[0]
