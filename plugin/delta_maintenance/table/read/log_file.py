"""Reads one file of a log as bytes, within `ReadLimits`; a truncated answer is requested again.

An empty commit leads to repairs. Therefore, if a store returns fewer bytes than it lists, the file
is read again before the commit counts as damaged.
"""

from __future__ import annotations

from delta_maintenance.errors import OversizedFileError, StorageError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.storage.core.base import FileStatus, Store


def read_listed(store: Store, listed: FileStatus) -> bytes:
    """Reads a JSON file of the log that was listed.

    Raises `OversizedFileError` before reading a file that is too large, `StorageError` if the store
    repeatedly returns fewer bytes than it lists, and `FileNotFoundError` if the file no longer
    exists.
    """
    most = ReadLimits.of(store).text_bytes
    if listed.size > most:
        raise _oversized(store, listed.path, str(listed.size), most)
    data = store.read(listed.path)
    if data and len(data) >= listed.size:
        return data
    return _read_again(store, listed.path, data)


def read_text(store: Store, path: str) -> bytes:
    """Reads a JSON file of the log of unknown size. Raises the errors of `read_listed`."""
    most = ReadLimits.of(store).text_bytes
    data = store.read_head(path, most + 1)
    if len(data) > most:
        raise _oversized(store, path, f"more than {most}", most)
    return data or _read_again(store, path, data)


def read_hint(store: Store, path: str) -> bytes:
    """Reads a small optional file: `_last_checkpoint`, a version checksum and similar ones.

    Returns no bytes, which is never valid, for a file that is too large. Raises `FileNotFoundError`
    if the file does not exist.
    """
    most = ReadLimits.of(store).hint_bytes
    data = store.read_head(path, most + 1)
    return data if len(data) <= most else b""


def _read_again(store: Store, path: str, data: bytes) -> bytes:
    status = store.stat(path)
    if status is None:
        raise FileNotFoundError(path)
    if status.size == len(data):
        return data
    data = store.read(path)
    if len(data) != status.size:
        raise StorageError(
            f"the store returned {len(data)} bytes of a file of {status.size}, twice",
            file=path,
            remedy="run again when the store works properly; the file may be intact",
        )
    return data


def _oversized(store: Store, path: str, size: str, most: int) -> OversizedFileError:
    return OversizedFileError(
        f"the file has {size} bytes, of which at most {most} may be read",
        table=store.root,
        file=path,
        remedy=ReadLimits.of(store).remedy(),
    )
