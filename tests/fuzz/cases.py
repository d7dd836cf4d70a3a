"""One case of the fuzzer: a table, its damage, and the outcomes of some verbs."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage import MemoryStore, memory
from delta_maintenance.storage.core.paths import check_path
from tests.fuzz.mutations import mutate
from tests.fuzz.rows import Rows, rows_of
from tests.fuzz.tables import Files, pick
from tests.fuzz.verbs import VERBS, Finding, run_verb

VERBS_PER_CASE = 3


@dataclass(frozen=True)
class Case:
    """The case of one seed."""

    told: str
    findings: Sequence[Finding]

    def lines(self) -> list[str]:
        """A report for people: one line per finding."""
        return [f"{f.verb}: {f.what} | {f.detail} | {self.told}" for f in self.findings]


def play(seed: int, candidates: list[Files], *, verbs: int = VERBS_PER_CASE) -> Case:
    """The case of a seed; always the same for the same tables."""
    chance = random.Random(f"fuzz {seed}")
    table = pick(candidates, chance)
    contents, told = mutate(table, chance)
    chosen = chance.sample(sorted(VERBS), min(verbs, len(VERBS)))
    mutated = replace(table, contents=contents)
    with ExitStack() as stack:
        if chance.random() < 0.1 or not all(map(_is_clean, contents)):
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
            mutated.write_below(root)
            address = str(root)
        else:
            address = f"memory://fuzz-{seed}/table"
            mutated.put_into(MemoryStore(Address.parse(address)))
            stack.callback(memory._NAMED.pop, f"fuzz-{seed}", None)
        findings = []
        before = rows_of(address) if table.has_rows else None
        for verb in chosen:
            findings += run_verb(verb, address, chance)
            if before is not None and (after := rows_of(address)) != before:
                if not _may_change(verb, before, after):
                    change = "cannot be read" if after is None else f"were {before}, are {after}"
                    findings.append(Finding(verb, "the rows changed", change))
                before = after
    return Case(f"{table.name}: {told}", findings)


def _may_change(verb: str, before: Rows, after: Rows | None) -> bool:
    if verb == "expire" and after is not None:
        # Each number is a time in 1970, and a row without one never expires.
        return after <= before and all(row[0] is not None for row in before - after)
    # A repair replaces checkpoints with other files than the commits have.
    return verb == "fsck --repair"


def _is_clean(path: str) -> bool:
    try:
        check_path(path)
    except InvalidRequestError:
        return False
    return True
