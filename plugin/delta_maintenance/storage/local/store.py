"""A store on a POSIX file system, durable and atomic if the file system supports hard links."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import CommitUnknownError, RefusedError
from delta_maintenance.storage.core.base import FileStatus, Put, Store
from delta_maintenance.storage.core.paths import check_directory, check_path, check_start
from delta_maintenance.storage.core.streams import open_sink
from delta_maintenance.storage.local.descriptors import (
    EarlyFlush,
    OpenDirectories,
    open_source,
    reason,
    remove_if_empty,
    storage_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_maintenance.errors import StorageError
    from delta_maintenance.storage.core.listing import Skip
    from delta_maintenance.storage.local.walk import Enter


class LocalStore(Store):
    """The files below a local directory.

    The root itself may be a symbolic link and is resolved once. Links below it are never followed,
    for reading or for writing: a path through a link raises `RefusedError`. So does a listing that
    finds one, because leaving it out could make a log look shorter than it is.

    A file that is being written is named `.<name>.<id>.tmp`, in its final directory; if its writer
    is killed, the remaining file is never mistaken for the final one.
    """

    # Not true for network mounts; use threads there.
    is_near = True
    tells_old_versions = True

    def __init__(self, root: str | os.PathLike[str], *, new_id: clock.NewId = clock.new_id) -> None:
        self.address = Address.of_path(root)
        self._base = os.path.realpath(root)
        self._new_id = new_id

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        return self._list(check_directory(directory), check_start(start))

    def stat(self, path: str) -> FileStatus | None:
        segments = check_path(path).split("/")
        with (
            self._translate(path),
            suppress(FileNotFoundError),
            self._directory(segments[:-1]) as parent,
        ):
            status = os.stat(segments[-1], dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise _refused_link(path)
            if stat.S_ISREG(status.st_mode):
                return _status(path, status)
        return None

    def read(self, path: str) -> bytes:
        with self._translate(path, missing=True):
            descriptor, size = self._open(path)
            try:
                # One byte more than expected, because only an empty read proves the end of the
                # file.
                data = os.read(descriptor, size + 1)
                if len(data) != size:
                    data += _rest(descriptor)
                return data
            finally:
                os.close(descriptor)

    def read_head(self, path: str, size: int) -> bytes:
        with self.open(path) as file:
            # Python allocates a buffer of the requested size, so it is limited to the size of the
            # file.
            return file.read(min(size, os.fstat(file.fileno()).st_size))

    def open(self, path: str) -> BinaryIO:
        with self._translate(path, missing=True):
            descriptor, _ = self._open(path)
            return open_source(descriptor, path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        with self._translate(path), self._temporary(path) as temporary:
            if temporary.target() is not None:
                return Put.EXISTS
            with temporary.writer() as file:
                file.write(data)
            return self._link(temporary)

    def put(self, path: str, data: bytes) -> None:
        self.put_from(path, io.BytesIO(data))

    def put_from(self, path: str, source: BinaryIO) -> None:
        source.seek(0)
        with self._translate(path), self._temporary(path) as temporary:
            with temporary.writer() as file:
                shutil.copyfileobj(source, file, 1 << 20)
            temporary.sync()
            temporary.drop_checksum()
            os.replace(
                temporary.name,
                temporary.target_name,
                src_dir_fd=temporary.parent,
                dst_dir_fd=temporary.parent,
            )
            _sync_directory(temporary.parent)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with self._temporary(path) as temporary:
            with temporary.writer() as file:
                yield file
            with self._translate(path):
                outcome = self._link(temporary)
        if outcome is Put.EXISTS:
            raise FileExistsError(errno.EEXIST, "another writer's file exists", path)

    def delete(self, path: str) -> None:
        segments = check_path(path).split("/")
        with (
            self._translate(path),
            suppress(FileNotFoundError),
            self._directory(segments[:-1]) as parent,
        ):
            status = os.stat(segments[-1], dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise _refused_link(path)
            os.unlink(segments[-1], dir_fd=parent)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.root, os.path.abspath(self.root), self._base)))

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        # Imported here and below, so that only tree listings load pyarrow.
        from delta_maintenance.storage.local import walk as local_tree

        return local_tree.list_tree(self._entering, check_directory(directory), skip)

    def list_level(self, directory: str = "") -> pa.Table:
        from delta_maintenance.storage.local import walk as local_tree

        return local_tree.list_level(self._entering, check_directory(directory))

    def statuses(self, paths: pa.ChunkedArray) -> pa.Table:
        from delta_maintenance.storage.core import listing as tree
        from delta_maintenance.storage.local import walk as local_tree

        tree.check_paths(paths)
        return local_tree.statuses(self._entering, paths.to_pylist())

    def delete_unchanged(self, files: pa.Table) -> dict[str, StorageError]:
        from delta_maintenance.storage.core import listing as tree
        from delta_maintenance.storage.local import walk as local_tree

        tree.check_paths(files["path"])
        return local_tree.delete_unchanged(self._entering, files)

    def remove_empty_directory(self, path: str) -> bool:
        segments = check_path(path).split("/")
        try:
            with self._translate(path, missing=True), self._directory(segments[:-1]) as parent:
                return remove_if_empty(segments[-1], parent)
        except FileNotFoundError:
            return True

    def remove_empty_directories(self, paths: Iterable[str]) -> Iterator[bool]:
        from delta_maintenance.storage.local import walk as local_tree

        return local_tree.remove_empty_directories(self._entering, map(check_path, paths))

    @contextmanager
    def _entering(self) -> Iterator[Enter]:
        opened = OpenDirectories(self._base, partial(self._enter, create=False))

        @contextmanager
        def enter(directory: str) -> Iterator[int]:
            with (
                self._translate(directory or self.root, missing=True),
                opened.enter(directory) as here,
            ):
                yield here

        with closing(opened):
            yield enter

    def _list(self, directory: str, start: str) -> Iterator[FileStatus]:
        within = f"{directory}/" if directory else ""
        with (
            self._translate(directory or self.root),
            suppress(FileNotFoundError),
            self._directory(directory.split("/") if directory else []) as here,
        ):
            names = []
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name < start:
                        continue
                    if entry.is_symlink():
                        raise _refused_link(within + entry.name)
                    if entry.is_file(follow_symlinks=False):
                        names.append(entry.name)
            for name in sorted(names):
                try:
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                except FileNotFoundError:
                    # A file that was deleted since the scan no longer exists, so omitting it is
                    # correct.
                    continue
                except OSError as error:
                    raise storage_error(error, within + name) from error
                yield _status(within + name, status)

    def _open(self, path: str) -> tuple[int, int]:
        """Returns a descriptor of a file, and its size."""
        segments = check_path(path).split("/")
        with self._directory(segments[:-1]) as parent:
            try:
                # Without O_NONBLOCK, opening a named pipe would wait for a writer.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(segments[-1], flags, dir_fd=parent)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _refused_link(path) from error
                raise
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
            return descriptor, status.st_size

    @contextmanager
    def _directory(self, segments: list[str], *, create: bool = False) -> Iterator[int]:
        """Opens a directory step by step without following links."""
        try:
            here = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if not create:
                raise
            os.makedirs(self._base, exist_ok=True)
            here = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for depth, segment in enumerate(segments, start=1):
                below = self._enter(here, segment, "/".join(segments[:depth]), create=create)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _enter(self, here: int, segment: str, path: str, *, create: bool) -> int:
        if create:
            with suppress(FileExistsError):
                os.mkdir(segment, dir_fd=here)
                # Otherwise a crash could lose the directory together with an acknowledged file.
                _sync_directory(here)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            return os.open(segment, flags, dir_fd=here)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            if stat.S_ISLNK(os.stat(segment, dir_fd=here, follow_symlinks=False).st_mode):
                raise _refused_link(path) from error
            if create:
                raise
            # As on an object store, a path below a file does not exist.
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", path) from error

    @contextmanager
    def _temporary(self, path: str) -> Iterator[_Temporary]:
        """Creates a temporary file beside `path` and removes it at the end of the block."""
        *segments, name = check_path(path).split("/")
        with ExitStack() as cleanup:
            with self._translate(path):
                parent = cleanup.enter_context(self._directory(segments, create=True))
                temporary = _Temporary(parent, path, f".{name}.{self._new_id()}.tmp")
                cleanup.callback(temporary.discard)
            # Errors of the block are not converted: a missing input is not a failure of this store.
            yield temporary

    def _link(self, temporary: _Temporary) -> Put:
        """Gives the finished file its final name, unless that name exists."""
        temporary.sync()
        if temporary.target() is None:
            temporary.drop_checksum()
        try:
            os.link(
                temporary.name,
                temporary.target_name,
                src_dir_fd=temporary.parent,
                dst_dir_fd=temporary.parent,
            )
        except OSError as error:
            # A network file system may create the link, lose the answer, and fail its own retry.
            if not temporary.is_target():
                if error.errno == errno.EEXIST:
                    return Put.EXISTS
                if error.errno in _NO_HARD_LINKS:
                    raise RefusedError(
                        f"the file system has no hard links ({reason(error)}), so a commit there "
                        "could overwrite another one",
                        file=temporary.path,
                        remedy="move the table to a file system with hard links or an object store",
                    ) from error
                raise
        try:
            _sync_directory(temporary.parent)
        except OSError as error:
            raise CommitUnknownError(
                f"the file is written but may not survive a crash: {reason(error)}",
                file=temporary.path,
                remedy="check whether the file exists before running again",
            ) from error
        return Put.DONE

    @contextmanager
    def _translate(self, path: str, *, missing: bool = False) -> Iterator[None]:
        """Converts system errors to errors of this library, except `FileNotFoundError` if
        `missing`.
        """
        try:
            yield
        except OSError as error:
            if missing and isinstance(error, FileNotFoundError):
                raise
            raise storage_error(error, path) from error


class _Temporary:
    """A file that is being written, and its final name in the same directory."""

    def __init__(self, parent: int, path: str, name: str) -> None:
        self.parent = parent
        self.path = path
        self.target_name = path.rpartition("/")[2]
        self.name = name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self.descriptor = os.open(name, flags, 0o666, dir_fd=parent)
        self._early_flush = EarlyFlush(self.descriptor)

    def writer(self) -> BinaryIO:
        """A stream for writing the file; closing it leaves the descriptor open for `sync`."""
        return open_sink(self.descriptor, self.path, written=self._early_flush.written)

    def sync(self) -> None:
        self._early_flush.finish()
        os.fsync(self.descriptor)

    def target(self) -> os.stat_result | None:
        try:
            return os.stat(self.target_name, dir_fd=self.parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def discard(self) -> None:
        # A failure here does not undo the commit. A remaining temporary file is harmless.
        with suppress(OSError):
            self._early_flush.finish()
        with suppress(OSError):
            os.close(self.descriptor)
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self.parent)

    def is_target(self) -> bool:
        target_status = self.target()
        return target_status is not None and os.path.samestat(
            target_status, os.fstat(self.descriptor)
        )

    def drop_checksum(self) -> None:
        """Removes Hadoop's checksum file of an earlier file of this name, which no longer matches.

        This happens before the new file is published: Hadoop reads files without a checksum, and
        fails if the checksum is wrong.
        """
        with suppress(FileNotFoundError):
            os.unlink(f".{self.target_name}.crc", dir_fd=self.parent)


def _rest(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _refused_link(path: str) -> RefusedError:
    return RefusedError(
        "a symbolic link below a table's root is never followed",
        file=path,
        remedy="put the file itself there, or open the table at the link's target",
    )


def _status(path: str, status: os.stat_result) -> FileStatus:
    return FileStatus(path=path, size=status.st_size, modified_ms=status.st_mtime_ns // 1_000_000)


def _sync_directory(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


_NO_HARD_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))
