"""Every verb of the command line, run on one table in this process, and its allowed outcomes."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from unittest import mock

from delta_maintenance.cli import main as cli
from delta_maintenance.errors import DeltaMaintenanceError
from tests.support.suite.usage import measured

MEMORY = 700 << 20
"""Bytes of memory that a verb may use for a small table, whatever its files contain."""
SECONDS = 20.0
"""Of CPU time."""
_USAGE = 2
_MOST_RINGS = 10
"""How often work that has hardly begun is given more time."""
LONGEST_LINE = 1024 + len("delta-maintenance: warning: ")

VERBS: Mapping[str, tuple[str, ...]] = {
    "inspect": (),
    "files": (),
    "history": (),
    "health": (),
    "checkpoint": (),
    "checkpoint --incremental always": (),
    "checkpoint --kind v2-parquet": ("--actions-per-sidecar", "2"),
    "checksum": (),
    "compact-log": ("--commits-per-file", "2", "--partial"),
    "clean-log": (),
    "publish": (),
    "clean-staged": (),
    "keep-version": ("audit-2026",),
    "erasure-report": ("id < 5",),
    "vacuum": ("--ignore-missing-files",),
    "layout": ("--where", "id < 5 or not id in (1, 2)", "--where", "id is null"),
    "fsck": (),
    "fsck --deep": (),
    "fsck --repair": (),
    "backfill-row-ids": ("--other-writers", "conditional_put"),
    "recompute-stats": ("--check-writers", "--other-writers", "conditional_put"),
    "upgrade-protocol": ("--feature", "deletionVectors", "--other-writers", "conditional_put"),
    "set-properties": (
        *("--set", "delta.enableChangeDataFeed=true", "--set", "delta.appendOnly=false"),
        *("--other-writers", "conditional_put"),
    ),
    "set-clustering": ("--by", "id", "--other-writers", "conditional_put"),
    "drop-feature": ("--feature", "deletionVectors", "--other-writers", "conditional_put"),
    "optimize": ("--min-files", "2", "--other-writers", "conditional_put"),
    "optimize --full --int96 --other-codecs": ("--deleted-percent", "0"),
    "purge": ("--above-percent", "0", "--other-writers", "conditional_put"),
    "expire": (
        *("id", "--unit", "us", "--older-than", "1 day", "--mixed", "rewrite"),
        *("--other-writers", "conditional_put", "--allow-large-delete"),
    ),
    "cluster": ("--by", "id", "--other-writers", "conditional_put"),
    # Carried out, it would start Spark.
    "add-constraint": ("positive", "id > 0", "--other-writers", "conditional_put", "--dry-run"),
}
"""The verbs, each with options with which it has work to do."""
READING = frozenset({"inspect", "files", "history", "health", "layout"})


@dataclass(frozen=True)
class Finding:
    """A violation that no bytes in any file may cause."""

    verb: str
    what: str
    detail: str = ""


def run_verb(verb: str, address: str, chance: random.Random) -> list[Finding]:
    """Runs a verb, as a dry run or not, and returns the violations of its outcome."""
    name, *flags = verb.split()
    words = [name, address, *VERBS[verb], *flags]
    if name not in READING and chance.random() < 0.4:
        words.append("--dry-run")
    as_json = chance.random() < 0.5
    if as_json:
        words.append("--json")
    failures: list[Exception] = []
    failed = cli._report_failure

    def remembering(error: Exception, *arguments: object) -> int:
        failures.append(error)
        return failed(error, *arguments)

    out, err = io.StringIO(), io.StringIO()
    findings = []
    with (
        measured() as taken,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(cli, "_report_failure", remembering),
    ):
        try:
            with _alarm(3 * SECONDS):
                status = cli.main(words)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            findings.append(Finding(verb, f"raises {type(error).__name__}", _trace(error)))
            status = 0
    if status == _USAGE and not failures:
        findings.append(Finding(verb, "the command line is wrong", err.getvalue()[:300]))
    for error in failures:
        if not isinstance(error, DeltaMaintenanceError):
            what = f"{type(error).__name__}: {error}"[:200]
            findings.append(Finding(verb, what, _trace(error)))
        elif error.remedy is None and not isinstance(error, TimeoutError):
            findings.append(Finding(verb, "an error without a remedy", str(error)[:500]))
    if taken.memory > MEMORY:
        findings.append(Finding(verb, "too much memory", f"{taken.memory >> 20} MiB"))
    if taken.seconds > SECONDS:
        findings.append(Finding(verb, "too long", f"{taken.seconds:.1f} s"))
    for line in err.getvalue().splitlines():
        if len(line.encode(errors="surrogatepass")) > LONGEST_LINE:
            findings.append(Finding(verb, "a line of more than 1 kB", f"{len(line)}: {line[:300]}"))
            break
    if as_json and status == 0 and name != "files":
        try:
            json.loads(out.getvalue())
        except ValueError as error:
            findings.append(Finding(verb, "no JSON on stdout", str(error)))
    return findings


def _trace(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "delta_maintenance" in f.filename][-4:]
    return " < ".join(
        f"{f.filename.rpartition('delta_maintenance/')[2]}:{f.lineno}" for f in reversed(own)
    )


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends work that takes too long; on a busy machine, after several times as long."""
    worked, rings = time.process_time(), iter(range(_MOST_RINGS))

    def ring(signum: int, frame: FrameType | None) -> None:
        if time.process_time() - worked < SECONDS and next(rings, None) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
