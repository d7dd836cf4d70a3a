"""Stores of all other file systems of fsspec, for reading, with literal paths."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import quote, unquote

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import (
    InvalidRequestError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.redaction import LINK
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently
from delta_maintenance.storage.core.base import ReadOnlyStore
from delta_maintenance.storage.core.directory_store import DirectoryStore, Entry, FileTree
from delta_maintenance.storage.core.option_values import hide_secrets
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.storage.core.streams import StreamingPool


def as_arguments(address: Address, given: Mapping[str, str]) -> dict[str, Any]:
    """Converts storage options to arguments of fsspec.

    An option is an argument of the first file system of the address; `SCHEME.NAME` is an argument
    of the file system SCHEME in a chain. `true`, `false`, JSON lists and JSON objects are
    converted, and so are digits, except in options that identify the user, such as a password.
    """
    schemes = [scheme_of(link) for link in re.split(LINK, _address_text(address))]
    # A shared instance would keep the credentials in a process-wide cache.
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    for scheme in schemes[1:]:
        arguments[scheme] = {"skip_instance_cache": True}
    if schemes[0] in ("http", "https"):
        arguments["encoded"] = True
    for name, value in given.items():
        scheme, dot, argument = name.partition(".")
        if dot and scheme in schemes[1:]:
            arguments[scheme][argument] = _value(argument, value)
        elif dot and scheme == schemes[0]:
            arguments[argument] = _value(argument, value)
        elif dot or name in _OURS:
            raise InvalidRequestError(
                f"there is no storage option {name!r} for this address",
                remedy=f"write NAME, or SCHEME.NAME with one of {', '.join(schemes)}",
            )
        else:
            arguments[name] = _value(name, value)
    return arguments


def secrets_of(given: Mapping[str, str]) -> list[str]:
    """Returns the values that must not appear in messages, the longest first."""
    switches = {value for name, value in given.items() if value.lower() in ("true", "false")}
    return sorted(
        (value for value in given.values() if value not in switches), key=len, reverse=True
    )


def scheme_of(link: str) -> str:
    """The scheme of one link of a chained address."""
    if "://" not in link:
        return "file" if link.startswith("/") else link.partition(":")[0]
    return link.partition("://")[0].lower()


def _address_text(address: Address) -> str:
    return f"{address.before}{address.path}{address.behind}"


def _value(name: str, value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    digits = value.isascii() and value.isdecimal()
    return int(value) if digits and not _IDENTITY.search(name) else value


_IDENTITY = re.compile(r"user|name|pass|secret|token|key|account|credential", re.IGNORECASE)
_OURS = frozenset(("skip_instance_cache", "use_listings_cache", "protocol", "fo"))


def modified_ms(info: Mapping[str, Any]) -> int | None:
    """Returns milliseconds since 1970-01-01 UTC; None if the file system reports no time.

    The creation time is not used, because a file that was replaced may keep it.
    """
    for name in _NAMES:
        value = info.get(name)
        if value is not None:
            return _millis(value)
    return None


def _millis(value: Any) -> int | None:
    if isinstance(value, str):
        value = _parse_time(value)
    if isinstance(value, tuple | list) and len(value) >= 6:
        # Archives store no time zone.
        year, month, day, hour, minute, second = (int(number) for number in value[:6])
        value = datetime(year, month, day, hour, minute, second)
    if isinstance(value, datetime):
        return clock.epoch_millis(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, int | float):
        # A value below 1e11 is in seconds (up to the year 5138), otherwise in milliseconds.
        return int(value * 1000) if value < 1e11 else int(value)
    return None


def _parse_time(text: str) -> datetime | None:
    for parse in (_compact, datetime.fromisoformat, parsedate_to_datetime):
        try:
            return parse(text)
        except ValueError:
            continue
    return None


def _compact(text: str) -> datetime:
    """Parses the format of FTP."""
    return datetime.strptime(text, "%Y%m%d%H%M%S")


_NAMES = (
    "mtime",
    "modified",
    "last_modified",
    "LastModified",
    "Last-Modified",
    "updated",
    "modificationTime",
    "modify",
    "date_time",
)
"""The names that file systems use for the modification time."""


T = TypeVar("T")


class FsspecFailure(RequestFailure):
    """A failed call of fsspec."""

    service = "fsspec"
    access_codes = frozenset(("PermissionError", "AuthenticationException", "NoCredentialsError"))

    @property
    def is_unsupported(self) -> bool:
        return self.status == 501


class FsspecTree(FileTree):
    """The directories below one path of an fsspec file system. Thread-safe."""

    permissions = {
        "read": "the right to read it",
        "list": "the right to list it",
        "write": "none: the store is read-only",
        "delete": "none: the store is read-only",
    }

    def __init__(
        self,
        system: Any,
        base: str,
        *,
        secrets: Sequence[str] = (),
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._system = system
        self._base = base
        self._secrets = secrets
        self._sleep = sleep
        self._pauses = pauses
        # Only HTTP addresses are percent-encoded; all other paths are literal.
        self._is_web = "http" in _protocols(system)
        # File systems with an event loop can be called from any thread. Some others have a single
        # connection, which two threads must not use at the same time.
        self._turn: AbstractContextManager[Any] = (
            nullcontext() if getattr(system, "async_impl", False) else threading.Lock()
        )
        self._at_once = 16 if getattr(system, "async_impl", False) else 1

    @classmethod
    def open(cls, address: Address, storage_options: Mapping[str, str]) -> FsspecTree:
        """Opens the file system at an address.

        `InvalidRequestError` for an unknown scheme or option and for a missing package,
        `StorageAccessError` if the file system rejects the credentials.
        """
        # Imported here, because only tables on these file systems need it.
        from fsspec.core import url_to_fs

        secrets = secrets_of(storage_options)
        error: InvalidRequestError | StorageError
        try:
            system, base = url_to_fs(_url(address), **as_arguments(address, storage_options))
            if not address.is_chained and (address.scheme or "file") not in _protocols(system):
                raise ValueError("Protocol not known: fsspec took it for another one")
        except ImportError as cause:
            error = InvalidRequestError(
                f"addresses that begin with {address.scheme or 'this chain'}: need another package "
                f"({_error_text(cause, secrets)})",
                remedy="install it",
            )
        except ValueError as cause:
            if "Protocol not known" not in str(cause):
                error = _not_opened(cause, secrets)
            else:
                error = InvalidRequestError(
                    f"no store supports addresses that begin with {address.scheme}:",
                    remedy="use a local path, file:, s3:, gs:, abfss:, hdfs: or any address of "
                    "fsspec, and ./ before a path that contains a colon",
                )
        except TypeError as cause:
            error = _not_opened(cause, secrets)
        except Exception as cause:
            # Backends raise errors of their own libraries, with no common class.
            passing = isinstance(cause, OSError) and not isinstance(
                cause, FileNotFoundError | PermissionError
            )
            error = (StorageError if passing else StorageAccessError)(
                f"the file system cannot be opened ({_error_text(cause, secrets)})",
                remedy="check the address, the storage options and the credentials",
            )
        else:
            without_listing_cache(system)
            return cls(system, base, secrets=secrets)
        # Raised outside the handler: the caught error may contain credentials.
        raise error

    def entries(self, directory: str, start: str = "") -> Iterable[Entry]:
        folder = self._path(directory)
        if self._is_web:
            folder += "/"
        listed = self._call(lambda: self._system.ls(folder, detail=True))
        if isinstance(listed, Mapping):
            listed = list(listed.values())
        found = []
        for info in listed:
            name = self._name(info, folder)
            if name is None or name < start:
                continue
            found.append((name, info))
        if not found and directory and self._is_file(directory, listed):
            return []
        needs = [pair for pair in found if _kind(pair[1]) == "file" and not _is_whole(pair[1])]
        if needs:
            with StreamingPool(self._at_once) as pool:
                complete_infos = pool.map(lambda pair: self._info(pair[1]["name"], pair[1]), needs)
                by_name = {pair[0]: info for pair, info in zip(needs, complete_infos, strict=True)}
            found = [(name, by_name.get(name, info)) for name, info in found]
        return [_entry(name, info) for name, info in found]

    def entry(self, path: str) -> Entry:
        return _entry(path.rpartition("/")[2], self._info(self._path(path)))

    def get(self, path: str, *, span: tuple[int, int] | None = None) -> bytes:
        name = self._path(path)
        if span is None:
            if self._is_web and self.entry(path).kind != "file":
                raise FsspecFailure(status=404, code="IsADirectoryError", detail="")
            return self._content(path, lambda: self._system.cat_file(name, **self._without_cache))
        offset, count = span
        if not count:
            return b""
        arguments = {"start": offset, "end": offset + count, **self._without_cache}
        data = self._content(path, lambda: self._system.cat_file(name, **arguments))
        # An HTTP server may ignore the range and send the whole file.
        return data[offset : offset + count] if len(data) > count else data

    def close(self) -> None:
        # fsspec has no call for this. File systems close their connections when they are
        # garbage-collected.
        self._system = None

    @property
    def _without_cache(self) -> dict[str, Any]:
        """Returns arguments that turn off read-ahead."""
        return {} if getattr(self._system, "async_impl", False) else {"cache_type": "none"}

    def _content(self, path: str, attempt: Callable[[], bytes]) -> bytes:
        try:
            return self._call(attempt)
        except FsspecFailure as failure:
            # The path does not exist in an archive, or the SFTP server cannot list directories.
            if failure.code in ("KeyError", "OSError") and self.entry(path).kind != "file":
                raise FsspecFailure(status=404, code="IsADirectoryError", detail="") from None
            raise

    def _info(self, name: str, known: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns the file system's description of one file, with its time."""
        info = {**(known or {}), **self._call(lambda: self._system.info(name))}
        if self._is_web and str(info.get("url", "")).endswith("/"):
            # The server redirected to the index of a directory.
            info["type"] = "directory"
        if _kind(info) == "file" and modified_ms(info) is None:
            modified = self._call(lambda: self._system.modified(name))
            info["modified"] = modified
        return info

    def _path(self, path: str) -> str:
        literal = f"{self._base.rstrip('/')}/{path}" if self._base and path else path or self._base
        if self._is_web:
            base = self._base.rstrip("/")
            return f"{base}/{quote(path)}" if path else base
        # Some file systems parse a path as an address and would interpret `?` or `#`.
        if self._system._strip_protocol(literal).rstrip("/") != literal.rstrip("/"):
            raise FsspecFailure(
                status=400,
                code="UnclearPath",
                detail="this file system interprets special characters in the name",
            )
        return literal

    def _name(self, info: Mapping[str, Any], folder: str) -> str | None:
        """Returns the bare name of an entry in a folder's listing; None for the folder itself."""
        name, within = str(info["name"]).rstrip("/"), folder.rstrip("/")
        if name == within:
            return None
        head, slash, bare = name.rpartition("/")
        if self._is_web:
            # An index page also links to sorted versions of itself and to other places.
            clean = head == within and not set("?#") & set(bare)
            return unquote(bare, errors="strict") if clean else None
        if head.strip("/") != within.strip("/"):
            detail = f"its list of {within} has {name}, which is not directly in it"
            raise FsspecFailure(status=501, code="OtherFolder", detail=detail)
        return bare

    def _is_file(self, directory: str, listed: Sequence[Mapping[str, Any]]) -> bool:
        return any(_kind(info) == "file" for info in listed)

    def _call(self, attempt: Callable[[], T]) -> T:
        """Calls fsspec, with retries."""

        def once() -> T:
            try:
                with self._turn:
                    return attempt()
            except Exception as error:
                # Backends raise errors of their own libraries, with no common class.
                failure = _failure_of(error, self._secrets)
            # Raised outside the handler: the caught error may contain credentials.
            raise failure

        return patiently(once, self._sleep, self._pauses)


def without_listing_cache(system: Any) -> None:
    """Turns off the listing caches of a file system and of all file systems below it."""
    while system is not None:
        cache = getattr(system, "dircache", None)
        if cache is not None and hasattr(cache, "use_listings_cache"):
            cache.use_listings_cache = False
            cache.clear()
        if hasattr(system, "use_listings_cache"):
            system.use_listings_cache = False
        system = getattr(system, "fs", None)


def _url(address: Address) -> str:
    """Returns the address in the form that fsspec reads: not decoded, with slashes after the
    scheme.
    """
    if address.before == f"{address.scheme}:/":
        return f"{address.scheme}:///{address.path}{address.behind}"
    path = quote(address.path) if address.scheme in _WEB else address.path
    return f"{address.before}{path}{address.behind}"


def _protocols(system: Any) -> Sequence[str]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _entry(name: str, info: Mapping[str, Any]) -> Entry:
    kind = _kind(info)
    modified = modified_ms(info)
    if kind == "file" and (info.get("size") is None or modified is None):
        raise FsspecFailure(
            status=501, code="NoStatus", detail="it does not report the size and time of files"
        )
    return Entry(
        name=name,
        kind=kind,
        size=int(info["size"]) if kind == "file" else 0,
        modified_ms=modified or 0,
    )


def _kind(info: Mapping[str, Any]) -> Literal["file", "directory", "other"]:
    if info.get("islink") or info["type"] not in ("file", "directory"):
        return "other"
    return "file" if info["type"] == "file" else "directory"


def _is_whole(info: Mapping[str, Any]) -> bool:
    return info.get("size") is not None and modified_ms(info) is not None


def _failure_of(error: Exception, secrets: Sequence[str]) -> FsspecFailure:
    # HTTP clients report every failed request as a missing file.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    status = getattr(cause or error, "status", None)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) and (
        cause is None or status in (404, 410)
    ):
        return FsspecFailure(status=404, code="FileNotFoundError", detail="")
    if not isinstance(status, int):
        status = None
    # An archive looks names up in its table of contents, so a retry changes nothing.
    if isinstance(cause or error, NotImplementedError | TypeError | ValueError | LookupError):
        status = 501
    if isinstance(error, PermissionError):
        status = 403
    if isinstance(error, FsspecFailure):
        return error
    code = type(cause or error).__name__
    return FsspecFailure(status=status, code=code, detail=_text(cause or error, secrets))


def _not_opened(cause: Exception, secrets: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        "the file system does not accept the address or the options "
        f"({_error_text(cause, secrets)})",
        remedy="correct them; a number is written in digits, a switch as true or false",
    )


def _error_text(error: BaseException, secrets: Sequence[str]) -> str:
    text = _text(error, secrets)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException, secrets: Sequence[str]) -> str:
    lines = str(error).strip().splitlines()
    return hide_secrets(lines[0], secrets)[:200] if lines else ""


_WEB = ("http", "https")


class FsspecStore(ReadOnlyStore, DirectoryStore):
    """The files below an address of fsspec, chained or not.

    Every call that would write or delete raises `RefusedError`, because fsspec has no call that
    creates a file exactly once. fsspec's listing caches are off, and paths are never treated as
    patterns.
    """

    def __init__(self, address: Address, storage_options: Mapping[str, str] | None = None) -> None:
        tree = FsspecTree.open(address, storage_options or {})
        super().__init__(address, tree)
        self._scheme = address.scheme or "file"
        self._is_chained = address.is_chained

    def _refuse(self, path: str) -> NoReturn:
        check_path(path)
        kind = "a chained address" if self._is_chained else f"{self._scheme}: addresses"
        raise RefusedError(
            f"{kind} can only be read, because fsspec has no call that creates a file exactly once "
            "and a commit could overwrite another one",
            table=self.root,
            file=path,
            remedy="use the engine that writes this table, or a store that commits "
            "(docs/integrations/stores.md)",
        )
