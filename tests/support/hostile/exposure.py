"""Searches processes and files of this machine for secrets while something runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PAUSE_SECONDS = 0.05
_LARGEST_FILE = 32 << 20


class Exposure:
    """The findings so far: lines such as `cmdline of java` and `file app/stderr`."""

    def __init__(self, secrets: Sequence[str], folders: Sequence[Path], marker: str) -> None:
        self.seen: set[str] = set()
        self.marked: dict[int, str] = {}
        """The processes with the marker in their environment, with their commands."""
        self.files: set[str] = set()
        """The files that were read."""
        self._secrets = [secret.encode() for secret in secrets]
        self._folders = folders
        self._marker = marker.encode()
        self._sizes: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Examines the processes of this user, and the files that changed since the last call.

        The environment of a process is the one that it was started with.
        """
        for process in filter(str.isdigit, os.listdir("/proc")):
            if int(process) == os.getpid():
                continue
            folder = Path("/proc", process)
            try:
                texts = {kind: (folder / kind).read_bytes() for kind in ("cmdline", "environ")}
                # After them, because a process that is being started still has another name.
                command = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if self._marker in texts["environ"]:
                self.marked[int(process)] = command
            self.seen |= {
                f"{kind} of {command}" for kind, text in texts.items() if self._holds(text)
            }
        for place in self._folders:
            for inside, _, names in os.walk(place):
                for name in names:
                    self._look_into(os.path.join(inside, name))

    def _look_into(self, path: str) -> None:
        try:
            found = os.stat(path)
            state = found.st_size, found.st_mtime_ns
            if self._sizes.get(path) == state or found.st_size > _LARGEST_FILE:
                return
            text = Path(path).read_bytes()
        except OSError:
            return
        self._sizes[path] = state
        self.files.add(path)
        if self._holds(text):
            self.seen.add(f"file {path}")

    def _holds(self, text: bytes) -> bool:
        return any(secret in text for secret in self._secrets)


@contextmanager
def watched(secrets: Sequence[str], folders: Sequence[Path], marker: str) -> Iterator[Exposure]:
    """Examines repeatedly until the block ends, and once after it."""
    exposure, ended = Exposure(secrets, folders, marker), threading.Event()

    def work() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            exposure.look()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield exposure
    finally:
        ended.set()
        thread.join(30)
    exposure.look()
