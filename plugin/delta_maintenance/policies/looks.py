"""The looks of one run at its table, each of which is brought forward from the one before."""

from __future__ import annotations

from delta_maintenance.table.read.file_sums import SumMemory
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

    def table_id(self) -> str | None:
        """Returns the ID in the table's metadata at the last look."""
        return (self._last or self.newest()).metadata.id

    def newest(self) -> Snapshot:
        """Opens the newest version. Raises the errors of `Table.snapshot`."""
        before = self._last
        self._last = self.table.snapshot() if before is None else self.table.forward(before)
        return self._last

    def to_plan(self) -> Snapshot:
        """Opens the newest version for a plan: on the checkpoint that a new reader would use.

        `newest` keeps the checkpoint of the look before if another process writes one of an older
        version. An incremental checkpoint must not take over sidecars from it then.
        """
        # One listing, made now, states the checkpoint and the commits. Files that appear after it
        # are treated like files that appear after the plan: transactions read the newer commits,
        # and an incremental checkpoint lists the newer checkpoints before its publication.
        before = self._last
        self._last = (
            self.table.snapshot()
            if before is None
            else self.table.forward(before, newest_checkpoint=True)
        )
        return self._last
