"""A random sample of the live files of a snapshot, and its newest files, taken while they are read.

Only the rows of these files are kept, so memory does not depend on the size of the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, COMMIT_VERSION
from delta_maintenance.protocol.columns import column_of

SAMPLED_FILES = 8
"""The maximum number of files in the sample."""
NEWEST_FILES = 50
"""The maximum number of newest files."""
FIELDS = ("path", "deletionVector", "size")


class FileSample:
    """Takes batches of live files, newest commits first and then the checkpoint.

    `seed` decides the sample. The newest files are those of commits after the version `newer_than`
    that are not in the checkpoint.
    """

    def __init__(self, *, seed: int, newer_than: int = -1) -> None:
        self.random = np.random.default_rng(seed)
        self._newer_than = newer_than
        self.restart()

    def restart(self) -> None:
        """Forgets all files, for another way to read them."""
        self._seen = 0
        self._sampled: list[dict[str, Any]] = []
        self._newest: list[dict[str, Any]] = []

    def files(self) -> list[dict[str, Any]]:
        """Returns the `FIELDS` of the files, each path once: the newest ones, then the sample."""
        return list({row["path"]: row for row in (*self._newest, *self._sampled)}.values())

    def take(self, adds: pa.Table, *, total: int | None = None) -> None:
        """Adds a batch. With `total`, it is a random part of that number of files."""
        if not adds.num_rows:
            return
        files = pa.table({name: column_of(adds, name, ADD_TYPES) for name in FIELDS})
        if COMMIT_VERSION in adds.column_names and len(self._newest) < NEWEST_FILES:
            newer = files.filter(pc.greater(adds[COMMIT_VERSION], self._newer_than))
            self._newest += newer.slice(0, NEWEST_FILES - len(self._newest)).to_pylist()
        total = max(total or 0, adds.num_rows)
        size = min(SAMPLED_FILES, self._seen + total)
        count = int(self.random.hypergeometric(total, self._seen, size))
        self._seen += total
        if count:
            count = min(count, adds.num_rows)
            rows = self.random.choice(adds.num_rows, count, replace=False)
            stay = self.random.permutation(len(self._sampled))[: size - count]
            self._sampled = [self._sampled[row] for row in stay]
            self._sampled += [r for row in rows for r in files.slice(int(row), 1).to_pylist()]
