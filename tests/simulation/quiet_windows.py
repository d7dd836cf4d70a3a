"""How often Delta Spark overwrites commits that were made after a quiet window.

`python -m tests.simulation.quiet_windows` prints the table of the documentation.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from tests.simulation.engines import without_log_store
from tests.simulation.s3_writers import MINUTE_MS, S3Run, Setting
from tests.simulation.world import HOUR_MS

SEEDS = 40
"""The number of seeds of the table in the documentation."""
WINDOWS_MS = {"1 min": MINUTE_MS, "10 min": 10 * MINUTE_MS, "1 h": HOUR_MS}
PAUSES_MS = {"2 s": 2_000, "30 s": MINUTE_MS // 2, "5 min": 5 * MINUTE_MS}


def random_breaks(mean_ms: int) -> list[int]:
    """Times between events that happen at random: quantiles of the exponential distribution."""
    return [round(-mean_ms * math.log1p(-(n + 0.5) / 20)) for n in range(20)]


BREAKS_MS: Mapping[str, Sequence[int]] = {
    "at random, every 2 h on average": random_breaks(2 * HOUR_MS),
    "at random, every 30 min on average": random_breaks(30 * MINUTE_MS),
    "30 s after the last one, and one of ten 5 h after it": (*[30_000] * 9, 5 * HOUR_MS),
}


def run(seeds: range, *, window_ms: int, pause_ms: int, breaks_ms: Sequence[int]) -> Counter[str]:
    """Counts the events of one writer without a log store, and of commits after quiet windows."""
    setting = Setting(
        engines=(without_log_store,),
        settings={"other_writers": "spark", "quiet": timedelta(milliseconds=window_ms)},
        pauses_ms=(pause_ms,),
        breaks_ms=breaks_ms,
        own_breaks_ms=random_breaks(sum(breaks_ms) // len(breaks_ms)),
        num_engine_tasks=12,
        num_own_tasks=12,
        upkeep=(),
    )
    return sum((S3Run(seed, setting).numbers() for seed in seeds), Counter())


def rows(seeds: range) -> Iterator[str]:
    """Yields the table of the documentation, line by line, as it is counted."""
    windows = " | ".join(f"window {window}" for window in WINDOWS_MS)
    yield f"| Delta Spark commits | between check and put | {windows} |"
    yield "|---|---|" + "---|" * len(WINDOWS_MS)
    for pattern, breaks_ms in BREAKS_MS.items():
        for pause, pause_ms in PAUSES_MS.items():
            cells = []
            for window_ms in WINDOWS_MS.values():
                numbers = run(seeds, window_ms=window_ms, pause_ms=pause_ms, breaks_ms=breaks_ms)
                cells.append(f"{numbers['overwritten']} of {numbers['commits of ours']}")
            yield f"| {pattern} | {pause} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    logging.disable(logging.CRITICAL)
    for row in rows(range(parser.parse_args().seeds)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
