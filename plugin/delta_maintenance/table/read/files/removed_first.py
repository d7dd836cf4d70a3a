"""Files of which the first action since a checkpoint is a remove: the checkpoint should have them.

An incremental checkpoint finds the sidecars of such files by tags and filters. A remove of a file
that none of the sidecars found contains means that the tags are wrong, or that the file was not
live.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.table.read.log_reader import TailBatch


class FirstActions:
    """Collects the oldest action of each logical file. Takes 9 bytes for each action."""

    def __init__(self) -> None:
        self._hashes: list[Hashes] = []
        self._is_remove: list[np.ndarray] = []

    def watching(self, batches: Iterator[TailBatch]) -> Iterator[TailBatch]:
        """Yields the batches of commits, which come newest first, and collects their actions."""
        for batch in batches:
            order = np.concatenate([batch.add_order, batch.remove_order])
            # Of an add and a remove in one commit, the remove comes first: it names the file as it
            # was before.
            is_remove = np.repeat([False, True], [len(batch.add_order), len(batch.remove_order)])
            oldest_last = np.lexsort((is_remove, order))
            hashes = np.concatenate([key_hashes(batch.adds), key_hashes(batch.removes)])
            self._hashes.append(hashes[oldest_last])
            self._is_remove.append(is_remove[oldest_last])
            yield batch

    def oldest(self) -> tuple[Hashes, np.ndarray]:
        """Returns the hash of the key of each file, ascending, and whether its oldest action is a
        remove.
        """
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])[::-1]
        is_remove = np.concatenate([np.empty(0, np.bool_), *self._is_remove])[::-1]
        found, first = np.unique(hashes, return_index=True)
        return found, is_remove[first]

    def removes(self) -> Hashes:
        """Returns the hashes of the keys of files whose oldest action is a remove, ascending."""
        found, is_remove = self.oldest()
        removed: Hashes = found[is_remove]
        return removed


def key_hashes(actions: pa.Table) -> Hashes:
    """Returns the hash of the logical file of each action."""
    chunks = logical_file_keys(actions).chunks if actions.num_rows else []
    return np.concatenate([np.empty(0, np.uint64), *map(hash_texts, chunks)])
