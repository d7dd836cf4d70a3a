"""Sums up examined files, and makes the rows of the report from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations.erasure_report import FoundFile, Place, PlaceTotal
from delta_maintenance.operations.erasure_report.examination import Examined
from delta_maintenance.table.progress import Progress

MOST_SHOWN = 100
"""The number of files and of problems that a Result contains."""
REPORT = pa.schema(
    [
        ("place", pa.string()),
        ("clone", pa.string()),
        ("path", pa.string()),
        ("version_id", pa.string()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("rows", pa.int64()),
        ("ends", pa.timestamp("ms", "UTC")),
        ("ends_by", pa.string()),
        ("problem", pa.string()),
    ]
)
_AT_ONCE = 1000


class ErasureTally:
    """The sums over examined files. Its memory does not grow with their number."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.files = 0
        self.bytes = 0
        self.others = 0
        """Files that are no Parquet files."""
        self.places: dict[Place, PlaceTotal] = {}
        self.found: list[FoundFile] = []
        self.problems: list[str] = []
        self._digest = hashlib.sha256()
        self._progress = progress
        self._total = total

    @property
    def digest(self) -> str:
        """The SHA-256 of the paths, IDs, sizes and checksums of all files, in their order."""
        return self._digest.hexdigest()

    def rows(self, examined: Iterable[Examined]) -> Iterator[pa.Table]:
        """Counts the files, and yields their rows (`REPORT`), some at a time."""
        remaining = iter(examined)
        while some := [*islice(remaining, _AT_ONCE)]:
            for each in some:
                self._take(each)
            yield _rows([each for each in some if each.is_parquet])

    def _take(self, examined: Examined) -> None:
        file = examined.file
        if not examined.is_parquet:
            self.others += 1
            return
        if file.place == "log":
            # Every commit adds files to the log.
            self._take_rows(examined)
            return
        self.files += 1
        self.bytes += file.size
        # The files of the table itself have the same digest with clones and without.
        where = "" if file.clone is None else f"{file.clone}\t"
        named = f"{where}{file.path}\t{file.version_id or ''}\t{file.size}\t{examined.sha256}\n"
        self._digest.update(named.encode())
        if self._progress is not None:
            self._progress("files read", self.files, max(self.files, self._total))
        if examined.problem is not None and len(self.problems) < MOST_SHOWN:
            where = "" if file.clone is None else f"clone {file.clone}: "
            self.problems.append(f"{where}{file.path}: {examined.problem}")
        if examined.rows:
            self._take_rows(examined)

    def _take_rows(self, examined: Examined) -> None:
        file = examined.file
        before = self.places.get(file.place)
        self.places[file.place] = PlaceTotal(
            place=file.place,
            files=1 + (before.files if before else 0),
            rows=examined.rows + (before.rows if before else 0),
            last_end=file.ends
            if before is None
            else None
            if before.last_end is None or file.ends is None
            else max(before.last_end, file.ends),
        )
        if len(self.found) < MOST_SHOWN:
            self.found.append(
                FoundFile(
                    place=file.place,
                    clone=file.clone,
                    path=file.path,
                    version_id=file.version_id,
                    rows=examined.rows,
                    size=file.size,
                    sha256=examined.sha256,
                    ends=file.ends,
                    ends_by=file.ends_by,
                )
            )


def _rows(examined: list[Examined]) -> pa.Table:
    files = [item.file for item in examined]
    millis = [None if file.ends is None else epoch_millis(file.ends) for file in files]
    columns = {
        "place": [file.place for file in files],
        "clone": [file.clone for file in files],
        "path": [file.path for file in files],
        "version_id": [file.version_id for file in files],
        "size": [file.size for file in files],
        "sha256": [item.sha256 for item in examined],
        "rows": [item.rows for item in examined],
        "ends": pc.cast(pa.array(millis, pa.int64()), REPORT.field("ends").type),
        "ends_by": [file.ends_by for file in files],
        "problem": [item.problem for item in examined],
    }
    return pa.table(columns, schema=REPORT)
