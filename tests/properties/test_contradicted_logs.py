"""No verb changes or deletes anything on a version that its log contradicts, and none refuses a
sound one.
"""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main
from tests.fuzz.verbs import READING, VERBS
from tests.support.logs.contradicted_logs import DAMAGES, build
from tests.support.suite.play import some

WRITING = {
    verb: words
    for verb, words in VERBS.items()
    if verb not in READING and not verb.startswith(("fsck", "erasure-report"))
}
MORE = {
    "vacuum": ("--mode", "lite", "--allow-large-delete"),
    "vacuum --allow-large-delete": ("--ignore-missing-files",),
}
CASES = range(10_000)


def run(verb: str, root: Path, chance: random.Random) -> tuple[int, str]:
    """Runs a verb on a table, as a dry run or not; returns its exit status and its message."""
    name, *flags = verb.split()
    words = [name, str(root), *(MORE | WRITING)[verb], *flags]
    if chance.random() < 0.3 and "--dry-run" not in words:
        words.append("--dry-run")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return status, err.getvalue()


def contents(root: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.cases
def test_no_verb_writes_on_a_contradicted_version_and_none_refuses_a_sound_one(
    tmp_path: Path,
) -> None:
    verbs, kinds = sorted(WRITING | MORE), [None, *DAMAGES]
    played = 0
    for case in some(CASES, 150):
        chance = random.Random(case)
        damage = kinds[case % len(kinds)]
        verb = chance.choice(verbs)
        root = tmp_path / str(case)
        root.mkdir()
        if not build(root, chance, damage):
            continue
        before = contents(root)
        status, message = run(verb, root, chance)
        told = f"case {case}: {damage}, {verb}: {status} {message}"
        if damage is None:
            assert status in (0, 3) and "contradict" not in message, told
        else:
            assert status == 5 and "contradict" in message, told
            assert contents(root) == before, told
        played += 1
    assert played > 100
