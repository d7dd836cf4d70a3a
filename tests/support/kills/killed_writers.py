"""Writers that race for the same files and are repeatedly killed in the middle."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from delta_maintenance.storage.core import Put, Store
from delta_maintenance.testing.store_contract import contribution

WRITERS = 4
PATIENCE_SECONDS = 480


def play(open_one: Callable[[], Store], paths: Sequence[str], *, kills: int) -> dict[str, int]:
    """Lets writers put their own bytes at each path, and kills one of them `kills` times.

    Each killed writer is replaced. Returns the writer of each file that was told so; there may be
    none if the writer was killed first.
    """
    seed = int(os.environ.get("SEED", time.time_ns()))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    processes = multiprocessing.get_context("forkserver")
    # Loaded once in the fork server, not by every writer.
    processes.set_forkserver_preload([__name__, "s3fs", "google.auth", "azure.identity"])
    winners: dict[str, int] = {}
    running: dict[Connection, BaseProcess] = {}
    started = 0

    def start() -> None:
        nonlocal started
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=_write, args=(sender, open_one, paths, started))
        process.start()
        sender.close()
        running[receiver] = process
        started += 1

    for _ in range(WRITERS):
        start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    answers_before_the_next_kill = dice.randrange(2 * len(paths) // kills + 1)
    while running:
        assert time.monotonic() < deadline
        for receiver in wait(list(running), timeout=1):
            assert isinstance(receiver, Connection)
            try:
                path, writer, outcome = receiver.recv()
            except EOFError:
                process = running.pop(receiver)
                process.join()
                receiver.close()
                assert process.exitcode in (0, -9)
                process.close()
                continue
            if outcome is Put.DONE:
                assert path not in winners, (path, writer, winners[path])
                winners[path] = writer
            answers_before_the_next_kill -= 1
            if kills and answers_before_the_next_kill < 0:
                kills -= 1
                answers_before_the_next_kill = dice.randrange(2 * len(paths) // (kills + 1) + 1)
                dice.choice(list(running.values())).kill()
                start()
    assert not kills
    return winners


def check(store: Store, paths: Sequence[str], winners: dict[str, int]) -> None:
    """Checks that every file is complete and was created by the writer that was told so."""
    ours = {path: store.read(path) for path in paths}
    for path, data in ours.items():
        writer = int(data.split(b"\n")[0].rpartition(b" ")[2])
        assert data == contribution(path, writer)
        assert winners.get(path, writer) == writer


def _write(
    sender: Connection, open_one: Callable[[], Store], paths: Sequence[str], writer: int
) -> None:
    with sender:
        store = open_one()
        for path in paths:
            sender.send((path, writer, store.put_if_absent(path, contribution(path, writer))))
        store.close()
