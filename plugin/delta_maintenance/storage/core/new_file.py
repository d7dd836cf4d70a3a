"""Files that nothing refers to until a later commit, such as data files and deletion vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from delta_maintenance.errors import CommitUnknownError, StorageError
from delta_maintenance.storage.core.base import Store


@contextmanager
def new_file(store: Store, path: str) -> Iterator[BinaryIO]:
    """Like `Store.create`, but an unknown outcome is a `StorageError`.

    The operation can run again without a check: no commit refers to the file.
    """
    try:
        with store.create(path) as file:
            yield file
    except CommitUnknownError as unknown:
        raise StorageError(
            unknown.problem, file=unknown.file, remedy="run again"
        ) from unknown.__cause__
