"""The shallow clones of a table that a report searches, and what each of them needs of the others.

A clone has files of its own, and refers to files in the folder of its source. These stay there as
long as the clone needs them, whatever the log of the source says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.erasure_report.places import NeededFiles, PlacedFiles
from delta_maintenance.operations.holds.clones import take_foreign_paths, unreadable
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.operations.holds.hold import StorageOptions
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.protocol.actions.paths import below_root
from delta_maintenance.protocol.vacuum import ProtectedPaths
from delta_maintenance.table.read.table import open_table


@dataclass(slots=True, kw_only=True)
class SearchedTables:
    """A table and its clones. A context manager, which closes the stores of the clones."""

    source: PlacedFiles
    clones: list[PlacedFiles] = field(default_factory=list)
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> SearchedTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the stores of the clones."""
        self._opened.close()

    def __iter__(self) -> Iterator[PlacedFiles]:
        yield self.source
        yield from self.clones

    @property
    def files(self) -> int:
        """The number of files in all folders."""
        return sum(searched.listed.num_rows for searched in self)

    @property
    def not_examined(self) -> tuple[str, ...]:
        """What could not be examined so far."""
        return tuple(dict.fromkeys(text for searched in self for text in searched.not_examined))

    def add(self, addresses: Sequence[str], *, now: datetime, options_at: StorageOptions) -> None:
        """Opens the clones at some addresses, and finds out what the tables need of each other.

        A clone that cannot be read is recorded: it may need every file of its source.
        """
        for address in dict.fromkeys(addresses):
            try:
                table = open_table(address, options_at(address))
                self._opened.enter_context(closing(table.store))
                if table.uri in self.source.store.addresses:
                    continue
                snapshot = table.snapshot()
                holds = find_holds(snapshot, Holders(), now=now, storage_options=options_at)
                self.clones.append(PlacedFiles(snapshot, holds, clone=address))
            except DeltaMaintenanceError as error:
                self._unread(address, error)
        for searched in list(self):
            self._take_needs(searched, now)

    def _take_needs(self, table: PlacedFiles, now: datetime) -> None:
        others = [other for other in self if other is not table]
        needs = _Needs(table, others)
        try:
            take_foreign_paths(table.snapshot, now=now, take=needs.take)
        except DeltaMaintenanceError as error:
            if table.clone is not None:
                self.clones.remove(table)
                self._unread(table.clone, error)
            else:
                table.leave_out(f"the files that its log may need elsewhere: {error.problem}")
            return
        for other, paths in zip(others, needs.found, strict=True):
            other.needed.append(NeededFiles(holder=table.name, paths=paths))
        if needs.elsewhere is not None:
            table.leave_out(
                "files outside of the folders that are searched, to which its log refers, such as "
                f"{needs.elsewhere}"
            )

    def _unread(self, address: str, error: DeltaMaintenanceError) -> None:
        problem = unreadable(address, error).problem
        self.source.not_examined.append(problem)
        holder = f"clone {address}, which cannot be read"
        self.source.needed.append(NeededFiles(holder=holder))


class _Needs:
    """The files in the folders of others to which the log of a table refers."""

    def __init__(self, table: PlacedFiles, others: Sequence[PlacedFiles]) -> None:
        self._own = table.store.addresses
        self._roots = [searched.store.addresses for searched in others]
        self.found = [ProtectedPaths(roots) for roots in self._roots]
        self.elsewhere: str | None = None
        """A file that is in none of the folders."""
        self._is_clone = table.clone is not None

    def take(self, paths: pa.StringArray) -> None:
        """Takes absolute paths, as written in the log."""
        remaining = paths.filter(pc.invert(_is_below(paths, self._own)))
        for roots, found in zip(self._roots, self.found, strict=True):
            inside = _is_below(remaining, roots)
            if inside.true_count:
                # Paths of other folders would protect files by their names alone.
                found.add(pa.table({"path": remaining.filter(inside)}))
                remaining = remaining.filter(pc.invert(inside))
        if not len(remaining):
            return
        self.elsewhere = self.elsewhere or remaining[0].as_py()
        if self._is_clone:
            # The source may have addresses that are not known, so a name protects a file, as in a
            # vacuum.
            self.found[0].add(pa.table({"path": remaining}))


def _is_below(paths: pa.StringArray, roots: Sequence[str]) -> pa.BooleanArray:
    is_below = pa.array([False] * len(paths), pa.bool_())
    for root in roots:
        is_below = pc.or_(is_below, pc.is_valid(below_root(paths, root=root)))
    return is_below
