"""A process that has imported every verb, and forks a child for each fault.

A child is killed after its visible change number `at`, or one of its calls fails with an
input/output error, from call number `at` on.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from delta_maintenance.operations.core import RunContext

_OLD = ("at", "--unit", "s", "--older-than", "30 days", "--allow-large-delete")
VERBS = {
    "checkpoint": ("checkpoint", "TABLE", "--kind", "v2-parquet", "--actions-per-sidecar", "4"),
    "checkpoint classic": ("checkpoint", "TABLE", "--kind", "classic"),
    "checksum": ("checksum", "TABLE"),
    "compact-log": ("compact-log", "TABLE", "--commits-per-file", "3"),
    "clean-log": ("clean-log", "TABLE"),
    "vacuum": ("vacuum", "TABLE", "--allow-large-delete"),
    "vacuum lite": ("vacuum", "TABLE", "--mode", "lite", "--allow-large-delete"),
    "keep-version": ("keep-version", "TABLE", "audit", "--version", "10"),
    "vacuum held": ("vacuum", "TABLE", "--allow-large-delete"),
    "clean-log held": ("clean-log", "TABLE"),
    "expire": ("expire", "TABLE", *_OLD, "--mixed", "rewrite"),
    "expire by vectors": ("expire", "TABLE", *_OLD, "--mixed", "deletion-vectors"),
    "fsck": ("fsck", "TABLE", "--repair"),
    "backfill-row-ids": ("backfill-row-ids", "TABLE", "--files-per-commit", "3"),
    "recompute-stats": ("recompute-stats", "TABLE", "--files-per-commit", "3"),
    "upgrade-protocol": ("upgrade-protocol", "TABLE", "--feature", "changeDataFeed"),
    "drop-feature": ("drop-feature", "TABLE", "--feature", "v2Checkpoint"),
    "set-properties": ("set-properties", "TABLE", "--set", "delta.checkpointInterval=7"),
    "set-clustering": ("set-clustering", "TABLE", "--by", "id"),
    "add-constraint": ("add-constraint", "TABLE", "positive", "id >= 0"),
    "optimize": ("optimize", "TABLE"),
    "purge": ("purge", "TABLE"),
    "cluster": ("cluster", "TABLE", "--by", "id"),
    "run": ("run", "POLICY"),
}
POLICY = """
version: 1
tables:
  - name: t
    uri: ROOT
    checkpoint: {max_commits: 3}
    compact_log: true
    clean_log: true
    vacuum: {every: 1 days}
"""
READING = {
    "inspect": ("inspect", "TABLE"),
    "files": ("files", "TABLE"),
    "history": ("history", "TABLE"),
    "health": ("health", "TABLE"),
    "fsck --deep": ("fsck", "TABLE", "--deep"),
}
_IMPORTED = ("delta_maintenance.policies.run", "pyarrow.parquet", "pyarrow.acero")


@dataclass(frozen=True)
class Ended:
    """The end of a verb that was not killed."""

    status: int
    count: int
    """Its visible changes, or its calls that could have failed."""
    call: str
    """The failed call, if any, and its path."""
    path: str
    stderr: str


ForkServer = Callable[[str, Path, int], Ended | None]
"""Runs a verb on the table of a root: harmed at `at`, undisturbed for 0; None if it was killed."""


@contextmanager
def fork_server(scratch: Path, *, io_errors: Path | None = None) -> Iterator[ForkServer]:
    """Harms by `kill -9`, or with the library built from `faults/io_errors.c` by its errors."""
    policy, told = scratch / "policy.yaml", scratch / "told"
    environment = dict(os.environ)
    if io_errors is not None:
        environment["LD_PRELOAD"] = str(io_errors)
    with (
        (scratch / "fork-server-stderr").open("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.operations.verb_fork_server", "io" * bool(io_errors)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def run(verb: str, root: Path, at: int) -> Ended | None:
            policy.write_text(POLICY.replace("ROOT", str(root)))
            places = {"TABLE": str(root), "POLICY": str(policy)}
            words = [places.get(word, word) for word in (VERBS | READING)[verb]]
            order = {"root": str(root), "at": at, "told": str(told), "words": words}
            print(json.dumps(order), file=lines, flush=True)
            answer = answers.readline()
            assert answer in ("-9\n", "0\n"), answer + Path(errors.name).read_text()
            return None if answer == "-9\n" else Ended(**json.loads(told.read_text()))

        yield run
        lines.close()


def _serve(harm: Callable[[str, int], Callable[[], tuple[int, str, str]]]) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _work(order, harm)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _work(
    order: Mapping[str, Any], harm: Callable[[str, int], Callable[[], tuple[int, str, str]]]
) -> None:
    from delta_maintenance.cli import main

    told = Path(order["told"])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    root, words = order["root"], order["words"]
    ended = harm(os.path.realpath(root), order["at"])
    status = _add_constraint(root) if words[0] == "add-constraint" else main.main(words)
    sys.stderr.flush()
    count, call, path = ended()
    found = Ended(status, count, call, path, told.read_text())
    told.write_text(json.dumps(asdict(found)))
    os._exit(0)


def _add_constraint(root: str) -> int:
    # The command starts Spark to check the rows; here they satisfy the constraint anyway.
    from delta_maintenance import clock, open_table
    from delta_maintenance.errors import DeltaMaintenanceError
    from delta_maintenance.operations import add_constraint
    from delta_maintenance.operations.add_constraint import CheckedRows

    try:
        table = open_table(root)
        options = add_constraint.AddConstraintOptions(name="positive", expression="id >= 0")
        planned = add_constraint.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
        add_constraint.apply(
            table, planned, context=RunContext(engine=lambda *_, **__: CheckedRows())
        )
    except DeltaMaintenanceError as error:
        print(error.locate(table=root), file=sys.stderr)
        return error.exit_status
    return 0


def _killed(root: str, at: int) -> Callable[[], tuple[int, str, str]]:
    made: list[str] = []
    lock = threading.RLock()

    def dying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            with lock:
                answer = call(*arguments, **options)
                if _is_visible(name, arguments, options, root):
                    made.append(name)
                    if len(made) == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                return answer

        return run

    for name in ("link", "replace", "rmdir", "unlink"):
        setattr(os, name, dying(name, getattr(os, name)))
    return lambda: (len(made), "", "")


def _is_visible(name: str, arguments: Any, options: Mapping[str, Any], root: str) -> bool:
    target = os.fspath(arguments[1 if name in ("link", "replace") else 0])
    parent = options.get("dst_dir_fd", options.get("dir_fd"))
    if parent is not None:
        target = os.path.join(os.readlink(f"/proc/self/fd/{parent}"), target)
    return os.path.realpath(os.path.dirname(target)).startswith(root) and target[-4:] != ".tmp"


def _failing(root: str, at: int) -> Callable[[], tuple[int, str, str]]:
    shim = ctypes.CDLL(None)
    shim.io_errors_call.restype = shim.io_errors_path.restype = ctypes.c_char_p
    shim.io_errors_calls.restype = ctypes.c_long
    shim.io_errors_arm.argtypes = [ctypes.c_char_p, ctypes.c_long]
    shim.io_errors_arm(root.encode(), at)

    def ended() -> tuple[int, str, str]:
        count, call = shim.io_errors_calls(), shim.io_errors_call().decode()
        path = shim.io_errors_path().decode()
        shim.io_errors_arm(b"", 0)
        return count, call, path

    return ended


if __name__ == "__main__":
    from delta_maintenance.operations.core import operations

    for module in _IMPORTED:
        importlib.import_module(module)
    operations()
    _serve(_failing if sys.argv[1] == "io" else _killed)
