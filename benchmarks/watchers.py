"""What it takes to watch many tables: the CPU, the memory and the requests of their poll loops.

    python -m benchmarks.watchers                       # 500 tables every 30 seconds, 2 minutes
    python -m benchmarks.watchers --tables 1000 --seconds 600

One process runs the triggers the way a triggerer does, with all that it has loaded: one trigger for
each of the four buckets that hold the tables of a policy. Another process serves the tables over S3
on the loopback interface, commits to some of them, and counts what it is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT

COMMITS = 40
"""Of each table, of which its last checkpoint covers all but ten."""
CORE_SHARE, MEMORY_MIB, REQUESTS_PER_POLL = 0.30, 300, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns 1 where a target is missed."""
    given = _arguments(argv)
    if given.serve:
        return _serve(given.tables, given.writes_per_second)
    if given.watch:
        return asyncio.run(_watch(given))
    server = _start("--serve", given)
    try:
        assert server.stdin is not None
        print(f"{given.tables} tables are made ...", file=sys.stderr, flush=True)
        options = _answer(server)
        print(f"watched for {given.seconds} seconds ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="delta-watchers-") as home:
            watched = _start("--watch", given, AIRFLOW_HOME=home, DELTA_STORE=json.dumps(options))
            # From the second interval on: the first has each table looked for.
            _answer(watched)
            server.stdin.write("count\n")
            server.stdin.flush()
            seen = _answer(watched)
            server.stdin.write("tell\n")
            server.stdin.flush()
            asked = _answer(server)
            watched.wait()
    finally:
        server.kill()
        server.wait()
    return _told(given, seen, asked)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watchers", description=__doc__)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--interval", type=float, default=30, help="seconds between polls")
    parser.add_argument("--seconds", type=float, default=120, help="how long is counted")
    parser.add_argument("--writes-per-second", type=float, default=2, help="commits by others")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _start(part: str, given: argparse.Namespace, **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "benchmarks.watchers", part, "--tables", str(given.tables)]
    words += ["--interval", str(given.interval), "--seconds", str(given.seconds)]
    words += ["--writes-per-second", str(given.writes_per_second)]
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON; Airflow logs to the same place."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise RuntimeError("the process ended without an answer")


def _told(given: argparse.Namespace, seen: dict[str, Any], asked: dict[str, Any]) -> int:
    seconds = seen["seconds"]
    polls = given.tables * seconds / given.interval
    core, memory = seen["cpu_seconds"] / seconds, seen["peak_mib"]
    # A poll is a listing; what else there is goes with one.
    per_poll = asked["requests"] / max(1, asked["listings"])
    rows = [
        ("CPU, of one core", f"{core:.1%}", f"{CORE_SHARE:.0%}", core <= CORE_SHARE),
        ("peak memory", f"{memory:.0f} MiB", f"{MEMORY_MIB} MiB", memory <= MEMORY_MIB),
        (
            "requests per poll, on average",
            f"{per_poll:.2f}",
            f"{REQUESTS_PER_POLL}",
            per_poll <= REQUESTS_PER_POLL,
        ),
        (
            "requests per poll, at most",
            f"{asked['most_per_poll']}",
            f"{REQUESTS_PER_POLL}",
            asked["most_per_poll"] <= REQUESTS_PER_POLL,
        ),
        ("longest work of the event loop", f"{seen['longest_work_ms']:.0f} ms", "200 ms", None),
    ]
    print(f"{given.tables} tables every {given.interval:.0f} s, counted for {seconds:.0f} s\n")
    print("| quantity | measured | target |\n|---|---|---|")
    for name, measured, target, _ in rows:
        print(f"| {name} | {measured} | {target} |")
    print(
        f"\n- {asked['listings']} listings (of {polls:.0f} polls due), {asked['requests']} requests"
        f"\n- {asked['commits']} commits by others, {seen['events']} events"
        f"\n- before the first table was watched: {seen['idle_mib']:.0f} MiB"
    )
    return int(any(met is False for *_, met in rows))


def _serve(tables: int, writes_per_second: float) -> int:
    """Serves the tables; answers `count` by counting anew, and `tell` by what was counted."""
    from tests.support.emulators.s3_server import serve_s3

    with serve_s3() as server:
        for table in range(tables):
            _fill(server, table)
        print(json.dumps(server.storage_options), flush=True)
        commits, stopped = [0] * tables, threading.Event()
        writer = threading.Thread(
            target=_write, args=(server, commits, writes_per_second, stopped), daemon=True
        )
        before = 0
        for line in sys.stdin:
            if line.strip() == "count":
                server.requests.clear()
                writer.start()
                before = sum(commits)
            else:
                stopped.set()
                told = _requests(list(server.requests))
                print(json.dumps({**told, "commits": sum(commits) - before}), flush=True)
    return 0


BUCKETS = 4


def _bucket(table: int) -> str:
    return f"lake-{table % BUCKETS}"


def _log(table: int) -> str:
    return f"table-{table}/_delta_log"


def _fill(server: Any, table: int) -> None:
    bucket, log = _bucket(table), _log(table)
    if table < BUCKETS:
        server.make_bucket(bucket)
    first = b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
    server.fill(bucket, [f"{log}/{0:020d}.json"], first)
    names = [f"{log}/{version:020d}.json" for version in range(1, COMMITS)]
    server.fill(bucket, [*names, *(f"{name[:-5]}.crc" for name in names)], _commit())
    covered = COMMITS - 10
    server.fill(bucket, [f"{log}/{covered:020d}.checkpoint.parquet"], b"PAR1")
    hint = json.dumps({"version": covered, "size": 1}).encode()
    server.fill(bucket, [f"{log}/_last_checkpoint"], hint)


def _commit() -> bytes:
    info = {"commitInfo": {"timestamp": 0, "operation": "WRITE", "engineInfo": "others"}}
    stats = json.dumps({"numRecords": 1000, "minValues": {"id": 1}, "maxValues": {"id": 9}})
    add = {"path": "part-0.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0}
    files = [{"add": {**add, "dataChange": True, "stats": stats}}] * 10
    return b"".join(json.dumps(line).encode() + b"\n" for line in [info, *files])


def _write(server: Any, commits: list[int], per_second: float, stopped: threading.Event) -> None:
    table = 0
    while per_second and not stopped.wait(1 / per_second):
        version = COMMITS + commits[table]
        server.fill(_bucket(table), [f"{_log(table)}/{version:020d}.json"], _commit())
        commits[table] += 1
        # Far apart, so that no table gets two within an interval.
        table = (table + 7) % len(commits)


def _requests(lines: list[str]) -> dict[str, int]:
    """How many there were, and how many at most between two listings of one table."""
    most, since = 0, Counter[str]()
    listings = 0
    for line in lines:
        found = re.search(r"table-(\d+)", line)
        table = found[1] if found else ""
        if "list-type=2" in line:
            listings += 1
            since[table] = 0
        since[table] += 1
        most = max(most, since[table])
    return {"requests": len(lines), "listings": listings, "most_per_poll": most}


async def _watch(given: argparse.Namespace) -> int:
    """Runs the triggers; prints a line when it begins to count, and one with what was counted."""
    options = json.loads(os.environ.pop("DELTA_STORE"))
    os.environ["AIRFLOW_CONN_LAKE"] = json.dumps({"conn_type": "delta", "extra": options})
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
    # What a triggerer has loaded anyway.
    import airflow.jobs.triggerer_job_runner  # noqa: F401

    from delta_maintenance_airflow.triggers import DeltaPolicyCommitTrigger

    idle = _resident_mib()
    events, tasks = Counter[str](), []

    async def run(trigger: DeltaPolicyCommitTrigger) -> None:
        async for event in trigger.run():
            events.update(told["status"] for told in event.payload["tables"])

    policy = Path(os.environ["AIRFLOW_HOME"], "policy.json")
    uris = [f"s3://{_bucket(table)}/table-{table}" for table in range(given.tables)]
    defaults = {"storage": {"connection": "lake"}}
    tables = [{"uri": uri} for uri in uris]
    policy.write_text(json.dumps({"version": 1, "defaults": defaults, "tables": tables}))
    for store in sorted({uri.rpartition("/")[0] for uri in uris}):
        trigger = DeltaPolicyCommitTrigger(
            policy=str(policy), store=store, poll_interval=given.interval
        )
        tasks.append(asyncio.create_task(run(trigger)))
    await asyncio.sleep(given.interval)
    print(json.dumps({"counting": True}), flush=True)
    waits = asyncio.create_task(_longest_work())
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(given.seconds)
    seen = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - used,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "idle_mib": idle,
        "events": events["changed"],
    }
    waits.cancel()
    seen["longest_work_ms"] = 1000 * (await asyncio.gather(waits, return_exceptions=True))[0]
    for task in tasks:
        task.cancel()
    failed = [one for one in await asyncio.gather(*tasks, return_exceptions=True) if one]
    assert all(isinstance(one, asyncio.CancelledError) for one in failed), failed
    print(json.dumps(seen), flush=True)
    return 0


async def _longest_work() -> float:
    """Seconds of CPU that the event loop at most spent before it got back to one who had slept.

    Not the time that passed: on a machine that is busy with others, that is theirs.
    """
    longest = 0.0
    try:
        while True:
            used = time.thread_time()
            await asyncio.sleep(0.05)
            longest = max(longest, time.thread_time() - used)
    except asyncio.CancelledError:
        return longest


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    sys.exit(main())
