"""Reading one file of a log as bytes: within `ReadLimits`, and never believing a short answer.

What follows from an empty commit is that somebody restores or removes it, so a store that once
gives less than it lists is asked again before the commit counts as damaged.
"""

from __future__ import annotations

from delta_maintenance.errors import OversizedFileError, StorageError
from delta_maintenance.limits import ReadLimits
from delta_maintenance.storage.core.base import FileStatus, Store


def read_listed(store: Store, listed: FileStatus) -> bytes:
    """A JSON file of the log that a listing showed.

    `OversizedFileError` before anything is read where it is too large; `StorageError` where the
    store keeps giving less than it lists; `FileNotFoundError` where it is gone.
    """
    most = ReadLimits.of(store).text_bytes
    if listed.size > most:
        raise _oversized(store, listed.path, str(listed.size), most)
    data = store.read(listed.path)
    if data and len(data) >= listed.size:
        return data
    return _looked_at_again(store, listed.path, data)


def read_text(store: Store, path: str) -> bytes:
    """A JSON file of the log whose size is not known. The errors are those of `read_listed`."""
    most = ReadLimits.of(store).text_bytes
    data = store.read_head(path, most + 1)
    if len(data) > most:
        raise _oversized(store, path, f"more than {most}", most)
    return data or _looked_at_again(store, path, data)


def read_hint(store: Store, path: str) -> bytes:
    """A small file that makes reading quicker: `_last_checkpoint`, a version checksum, the like.

    Empty, and so no sound one, where it is too large. `FileNotFoundError` where there is none.
    """
    most = ReadLimits.of(store).hint_bytes
    data = store.read_head(path, most + 1)
    return data if len(data) <= most else b""


def _looked_at_again(store: Store, path: str, data: bytes) -> bytes:
    status = store.stat(path)
    if status is None:
        raise FileNotFoundError(path)
    if status.size == len(data):
        return data
    data = store.read(path)
    if len(data) != status.size:
        raise StorageError(
            f"the store gives {len(data)} bytes of a file of {status.size}, and did so twice",
            file=path,
            remedy="run again when the store is well; the file may be sound",
        )
    return data


def _oversized(store: Store, path: str, size: str, most: int) -> OversizedFileError:
    return OversizedFileError(
        f"the file has {size} bytes, of which at most {most} may be read",
        table=store.root,
        file=path,
        remedy=ReadLimits.of(store).remedy(),
    )
