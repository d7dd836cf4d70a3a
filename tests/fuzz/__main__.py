"""The nightly run, `make fuzz`, in separate processes: the death of a process is a finding too."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

_CHUNK = 200
_CHUNK_SECONDS = 3600
_MOST_MEMORY = 5 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--verbs", type=int, default=4, help="of each case")
    parser.add_argument("--only", action="store_true", help="play the seeds in this process")
    arguments = parser.parse_args()
    if arguments.only:
        return _play(arguments)
    began, done, findings = time.monotonic(), 0, Counter[str]()
    seed, end = arguments.first, arguments.first + arguments.cases
    while seed < end:
        count = min(_CHUNK, end - seed)
        words = [sys.executable, "-m", "tests.fuzz", "--only", "--verbs", str(arguments.verbs)]
        words += ["--first", str(seed), "--cases", str(count)]
        ran = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, timeout=_CHUNK_SECONDS, env=os.environ
        )
        *lines, last = ["", *ran.stdout.splitlines()]
        for line in lines:
            if line.startswith("seed "):
                print(line, flush=True)
                findings[line.split(" | ")[0].partition(": ")[2]] += 1
        if ran.returncode:
            died = next(int(line.split()[-1]) for line in [last, *lines[::-1]] if line[:3] == "at ")
            print(f"seed {died}: the process died ({ran.returncode})", flush=True)
            findings["the process died"] += 1
            count = died - seed + 1
        seed += count
        done += count
        print(f"cases: {done}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"cases: {done}, findings: {sum(findings.values())}, {time.monotonic() - began:.0f} s")
    for what, number in findings.most_common():
        print(f"{number:6} {what}")
    return 1 if findings else 0


def _play(arguments: argparse.Namespace) -> int:
    import resource

    from tests.fuzz.cases import play
    from tests.fuzz.tables import tables

    # Limit the memory, so that a defect does not stop the machine.
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    shared = Path(__file__).parents[3] / "shared" / "tables"
    candidates = tables(Path(os.environ.get("DELTA_MAINTENANCE_CORPUS", shared)))
    for seed in range(arguments.first, arguments.first + arguments.cases):
        # If the process dies, the last line shows which case was running.
        print(f"at {seed}", flush=True)
        for line in play(seed, candidates, verbs=arguments.verbs).lines():
            print(line.encode(errors="backslashreplace").decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
