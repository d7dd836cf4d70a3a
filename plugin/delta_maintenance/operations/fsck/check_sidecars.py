"""Compares a sidecar of this library with its summary, on which incremental checkpoints rely."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from delta_maintenance.protocol.actions.paths import written_places
from delta_maintenance.protocol.columns.key_hash import hash_texts
from delta_maintenance.protocol.columns.membership_filter import MembershipFilter
from delta_maintenance.protocol.delta_log.sidecar_summary import PLACE_BYTES, SidecarSummary
from delta_maintenance.protocol.delta_log.tally import Tally
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.checkpoint_reader import FileActionBatch
from delta_maintenance.table.read.sidecar_search import read_filter


class SidecarCheck:
    """Collects the file actions of one sidecar and compares them with its summary."""

    def __init__(self, store: Store, path: str, summary: SidecarSummary | None) -> None:
        self._summary = summary
        self._filter: MembershipFilter | None = None
        if summary is not None:
            self._filter = read_filter(store, path, summary)
        self.found = Tally()
        """The tally of the file actions so far."""
        self._unknown = False

    def take(self, batch: FileActionBatch) -> None:
        """Adds a batch of its file actions."""
        self.found.include(batch.adds, batch.removes)
        summary = self._summary
        if summary is None:
            return
        for rows in (batch.adds, batch.removes):
            for chunk in rows["path"].chunks:
                places = written_places(chunk)
                if not len(places):
                    continue
                if self._filter is not None:
                    self._unknown |= not self._filter.may_hold(hash_texts(places)).all()
                ends = pc.min_max(pc.binary_slice(places, 0, PLACE_BYTES)).as_py()
                self._unknown |= ends["min"] < summary.first_place
                self._unknown |= ends["max"] > summary.last_place

    def problems(self) -> Iterator[str]:
        """Yields the problems, one clause each, after all batches."""
        summary = self._summary
        if summary is None:
            return
        if summary.tally != self.found:
            yield f"the sidecar contains {self.found}, but its tags state {summary.tally}"
        if self._unknown:
            yield "the sidecar contains files that its filter lacks"
        if summary.filter is not None and self._filter is None:
            yield "its filter cannot be decoded"
