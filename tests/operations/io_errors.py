"""Verbs on a disk whose calls fail with input/output errors, below the C library.

A library that the test compiles stands before the functions of the C library
(`tests/support/faults/io_errors.c`): PyArrow's own reads and writes fail like those of Python. From
the drawn call on, that function fails for that path.

    python -m tests.operations.io_errors --first 0 --cases 1450 --log io.log

plays 50 errors in each verb: error `n` is that of verb `n % 29`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from delta_maintenance import clock
from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.operations.verb_fork_server import READING, VERBS, Ended, ForkServer, fork_server
from tests.operations.visible_kills import Judge, build_kind, kind_of
from tests.support.suite import seed_runs

ALL = (*VERBS, *READING)
_SOURCE = Path(__file__).parents[1] / "support" / "faults" / "io_errors.c"
_BARE = re.compile(r"Traceback|\b(?!DeltaMaintenance)[A-Z]\w*(Error|Exception|Invalid)\b")
_LONGEST_LINE = 1024 + len("delta-maintenance: warning: ")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc") or shutil.which("gcc")


@contextmanager
def failing_disk(scratch: Path) -> Iterator[FailingDisk]:
    """Compiles the library and starts the process whose children run the verbs."""
    library = scratch / "io_errors.so"
    words = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
    subprocess.run([*words, "-ldl"], check=True, timeout=300)
    with fork_server(scratch, io_errors=library) as verbs:
        yield FailingDisk(verbs, scratch)


class FailingDisk:
    """Runs verbs on copies of tables that are built once."""

    def __init__(self, fork_server: ForkServer, scratch: Path) -> None:
        self._fork_server = fork_server
        self._scratch = scratch
        self._tables: dict[str, tuple[Path, Judge]] = {}
        self._calls: dict[tuple[str, str], int] = {}

    def fail(self, verb: str, number: int) -> Ended:
        """Lets one of the verb's calls fail, and another run finish its work."""
        chance = random.Random(f"io error {verb} {number}")
        kind = kind_of(verb)
        if kind == "neglected":
            kind = chance.choice((kind, "kept"))
        expires = verb.startswith("expire")
        whole, judge = self._table(kind)
        if (verb, kind) not in self._calls:
            with self._copy(whole) as root:
                self._calls[verb, kind] = self._run(verb, root, 0).count
        at = chance.randint(1, self._calls[verb, kind])
        with self._copy(whole) as root:
            ended = self._run(verb, root, at)
            where = f"{kind} table, call {at}: {ended.call} of {ended.path}: {ended}"
            assert not ended.call or tells(ended), where
            try:
                judge.check(root, expires=expires)
                again = self._run(verb, root, 0)
                assert again.status == 0, again
                judge.check(root, expires=expires, ended=True)
                status = fsck.plan(
                    Table(LocalStore(root)), context=RunContext.at(clock.now())
                ).status
                assert status != "corrupt", status
            except AssertionError as error:
                raise AssertionError(f"{error} | after {where}") from error
        return ended

    def _run(self, verb: str, root: Path, at: int) -> Ended:
        ended = self._fork_server(verb, root, at)
        assert ended is not None
        return ended

    def _table(self, kind: str) -> tuple[Path, Judge]:
        if kind not in self._tables:
            whole = self._scratch / kind
            build_kind(kind, whole)
            if kind == "kept":
                # Sidecars, log compactions and a hint are read, too.
                for verb in ("checkpoint", "compact-log"):
                    assert self._run(verb, whole, 0).status == 0
            self._tables[kind] = whole, Judge(whole)
        return self._tables[kind]

    @contextmanager
    def _copy(self, whole: Path) -> Iterator[Path]:
        root = self._scratch / "copy"
        shutil.copytree(whole, root)
        try:
            yield root
        finally:
            shutil.rmtree(root)


def tells(ended: Ended) -> bool:
    """Whether a verb that met the error ended well in spite of it, or says what to do about it."""
    lines = ended.stderr.splitlines()
    if _BARE.search(ended.stderr) or any(len(line.encode()) > _LONGEST_LINE for line in lines):
        return False
    if ended.status == 0:
        return True
    # A file under way is named by the name that it is to have, as a checksum of Hadoop is.
    name = re.sub(r"^\.(.*)\.([^.]*\.tmp|crc)$", r"\1", os.path.basename(ended.path))
    told = [line for line in lines if "Input/output error" in line and name in line]
    # A file is there, but perhaps not after a crash: that commit has an unknown outcome.
    remedy = (
        "run again" if ended.status == 1 else "check whether the file exists before running again"
    )
    return ended.status in (1, 4) and any(remedy in line for line in told)


_open = ExitStack()


def _prepare() -> seed_runs.Play:
    scratch = _open.enter_context(tempfile.TemporaryDirectory(prefix="io-errors-"))
    disk = _open.enter_context(failing_disk(Path(scratch)))

    def play(seed: int) -> list[str]:
        number, verb = divmod(seed, len(ALL))
        try:
            disk.fail(ALL[verb], number)
        except AssertionError as error:
            return [f"{ALL[verb]} | {error}"]
        return []

    return play


if __name__ == "__main__":
    sys.exit(seed_runs.main("io_errors", _prepare, cases=50 * len(ALL), end=_open.close))
