"""Every verb killed with `kill -9` right after it made something visible in the table.

`DELTA_MAINTENANCE_KILLS` is the number of kills of each verb.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.operations.verb_fork_server import VERBS
from tests.operations.visible_kills import Kills, kills

KILLS = int(os.environ.get("DELTA_MAINTENANCE_KILLS", "2"))


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kills]:
    with kills(tmp_path_factory.mktemp("kills")) as ours:
        yield ours


@pytest.mark.process
@pytest.mark.parametrize("verb", VERBS)
def test_after_a_kill_the_next_run_completes_without_loss(
    killing: Kills, verb: str, count_cases: Callable[[str, int], None]
) -> None:
    for number in range(KILLS):
        killing.kill(verb, number)
    count_cases(f"kills right after a visible change, {verb}", KILLS)
