"""The looks of one run at its table, each of which is brought forward from the one before."""

from __future__ import annotations

from delta_maintenance.table.read.files.known_sums import SumMemory
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table


class Looks:
    """Opens the newest version of a table again and again, and reads only what is new.

    It keeps the last snapshot, and in `sums` the sums of its files.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.sums = SumMemory()
        self._last: Snapshot | None = None

    def newest(self) -> Snapshot:
        """Opens the newest version. Raises the errors of `Table.snapshot`."""
        before = self._last
        self._last = self.table.snapshot() if before is None else self.table.forward(before)
        return self._last

    def to_plan(self) -> Snapshot:
        """Opens the newest version for a plan: on the checkpoint that a new reader would use.

        `Table.forward` keeps the checkpoint of the earlier snapshot if another process writes one
        of an older version. An incremental checkpoint must not take over sidecars from it then.
        """
        snapshot = self.newest()
        newer = list_log(self.table.store, first_version=snapshot.segment.base_version + 1)
        if newer.checkpoints:
            self._last = snapshot = self.table.snapshot()
        return snapshot
