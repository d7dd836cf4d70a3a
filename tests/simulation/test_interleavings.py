"""Three writers and two maintenance processes on one table, in any order, with crashes at any
request.

`DELTA_MAINTENANCE_SEED` plays one seed, `DELTA_MAINTENANCE_SEEDS` this number of seeds; without
both, as many as fit into `DELTA_MAINTENANCE_SECONDS`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.run import play

SECONDS = float(os.environ.get("DELTA_MAINTENANCE_SECONDS", "45"))
_MEANINGFUL = 20
"""The number of seeds in which every event occurs."""
_ENDINGS = {
    ("backfill-row-ids", "enabled"),
    ("checkpoint", "written"),
    ("clean-log", "cleaned"),
    ("compact-log", "written"),
    ("drop-feature", "dropped"),
    ("set-properties", "committed"),
    ("upgrade-protocol", "committed"),
    ("vacuum", "vacuumed"),
}


def seeds() -> Iterator[int]:
    """The seeds of this run."""
    if one := os.environ.get("DELTA_MAINTENANCE_SEED"):
        yield int(one)
        return
    if number := os.environ.get("DELTA_MAINTENANCE_SEEDS"):
        first, _, end = number.rpartition(":")
        yield from range(int(first or 0), int(end))
        return
    deadline, seed = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        yield seed
        seed += 1


# Hundreds of seeds of a nightly run, beside another part.
@pytest.mark.timeout(3600)
def test_no_order_of_writers_and_maintenance_breaks_an_invariant(
    count_cases: Callable[[str, int], None],
) -> None:
    told, endings = Counter[str](), Counter[tuple[str, str]]()
    for seed in seeds():
        try:
            played = play(seed)
        except Exception as error:
            again = f"DELTA_MAINTENANCE_SEED={seed} pytest {__file__}"
            raise AssertionError(f"seed {seed}; to play it again: {again}") from error
        told.update(played.numbers())
        endings.update(ending for keeper in played.keepers for ending in keeper.endings)
    print(*(f"{name} {ending}: {n}" for (name, ending), n in sorted(endings.items())), sep="\n")
    for what, number in told.items():
        count_cases(f"interleavings, {what}", number)
    if told["seeds"] >= _MEANINGFUL:
        assert min(told.values()) > 0, told
        assert endings.keys() >= _ENDINGS, _ENDINGS - endings.keys()


def test_a_seed_is_deterministic() -> None:
    first, second = (play(3).world.store for _ in range(2))
    (files,), (again,) = first.list_tree(), second.list_tree()
    assert again.equals(files)
    assert all(first.read(path) == second.read(path) for path in files["path"].to_pylist())
