"""One case of the fuzzer: a table, its damage, and the outcomes of some verbs."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import mutate
from tests.fuzz.tables import Files, pick
from tests.fuzz.verbs import VERBS, Finding, run_verb

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.storage.memory import store as memory
from delta_maintenance.storage.memory.store import MemoryStore

VERBS_PER_CASE = 3


@dataclass(frozen=True)
class Case:
    """The case of one seed."""

    seed: int
    told: str
    findings: Sequence[Finding]

    def lines(self) -> list[str]:
        """A report for people: one line per finding."""
        return [
            f"seed {self.seed}: {f.verb}: {f.what} | {f.detail} | {self.told}"
            for f in self.findings
        ]


def play(seed: int, candidates: list[Files], *, verbs: int = VERBS_PER_CASE) -> Case:
    """The case of a seed; always the same for the same tables."""
    chance = random.Random(f"fuzz {seed}")
    table = pick(candidates, chance)
    contents, told = mutate(table, chance)
    chosen = chance.sample(sorted(VERBS), min(verbs, len(VERBS)))
    mutated = Files(table.name, contents)
    with ExitStack() as stack:
        if chance.random() < 0.1 or not all(map(_is_clean, contents)):
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
            mutated.write_below(root)
            address = str(root)
        else:
            address = f"memory://fuzz-{seed}/table"
            mutated.put_into(MemoryStore(address))
            stack.callback(memory._NAMED.pop, f"fuzz-{seed}", None)
        findings = [finding for verb in chosen for finding in run_verb(verb, address, chance)]
    return Case(seed, f"{table.name}: {told}", findings)


def _is_clean(path: str) -> bool:
    try:
        check_path(path)
    except InvalidRequestError:
        return False
    return True
