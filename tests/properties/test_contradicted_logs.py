"""No verb changes or deletes anything on a version that its log contradicts, and none refuses a
sound one. What fsck says about such a version helps.
"""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main
from delta_maintenance.table.evidence import contradictions
from tests.fuzz.verbs import READING, VERBS
from tests.support.logs.contradicted_logs import DAMAGES, build
from tests.support.suite.play import some

WRITING = {
    verb: words
    for verb, words in VERBS.items()
    # The last two need a catalog.
    if verb not in READING
    and not verb.startswith(("fsck", "erasure-report", "publish", "clean-staged"))
} | {
    "vacuum": ("--mode", "lite", "--allow-large-delete"),
    "vacuum --allow-large-delete": ("--ignore-missing-files",),
}
SCANNING = {
    verb
    for verb in WRITING
    if verb.split()[0] in ("vacuum", "optimize", "purge", "expire", "cluster", "clean-log")
}
"""Verbs that read all files of a large table."""
OF_FILES = ("lost files", "resurrected", "vectors", "tombstones of live files")
KINDS = (None, *DAMAGES, None)
CASES = range(10_000)


def run(*words: str) -> tuple[int, str]:
    """Runs a verb; returns its exit status, and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    return status, out.getvalue() + err.getvalue()


def words_of(verb: str, root: Path) -> list[str]:
    name, *flags = verb.split()
    return [name, str(root), *WRITING[verb], *flags]


def contents(root: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def play(case: int, root: Path, *, large: bool = False) -> bool:
    """Plays one case; returns whether it says anything."""
    chance = random.Random(case)
    damage, verb = KINDS[case % len(KINDS)], chance.choice(sorted(WRITING))
    if not build(root, chance, damage):
        return False
    if large and damage in OF_FILES and verb not in SCANNING:
        return False
    words, before = words_of(verb, root), contents(root)
    dry = ["--dry-run"] if chance.random() < 0.3 and "--dry-run" not in words else []
    status, text = run(*words, *dry)
    told = f"case {case}: {damage}, {verb}: {status} {text}"
    if damage is None:
        assert status in (0, 3) and "contradict" not in text, told
        return True
    if not (large and (damage in ("tags", "checksum", *OF_FILES))):
        assert status == 5 and "contradict" in text, told
        assert contents(root) == before, told
    elif damage in OF_FILES:
        assert (status == 5 or "nothing" in text) and contents(root) == before, told
    if not large:
        _follow_the_remedy(root, damage, words, told)
    return True


def _follow_the_remedy(root: Path, damage: str, words: list[str], told: str) -> None:
    status, findings = run("fsck", str(root))
    assert status == 5, f"{told}\n{findings}"
    if damage == "checksum":
        assert "delete the checksum" in findings
        for path in root.glob("_delta_log/*.crc"):
            path.unlink()
    status, repairs = run("fsck", str(root), "--repair")
    if status == 5:
        assert "nothing proves which of them is right" in " ".join(repairs.split()), repairs
        return
    assert status == 0, f"{told}\n{repairs}"
    status, text = run(*words)
    assert status in (0, 3), f"{told}\n{repairs}\n{text}"


@pytest.mark.cases
def test_no_verb_writes_on_a_contradicted_version_and_none_refuses_a_sound_one(
    tmp_path: Path,
) -> None:
    played = 0
    for case in some(CASES, 40):
        root = tmp_path / str(case)
        root.mkdir()
        played += play(case, root)
    assert played > 25


@pytest.mark.cases
def test_verbs_that_read_all_files_compare_those_of_a_large_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contradictions, "FEW_ACTIONS", 0)
    played = 0
    for case in some(CASES, 40):
        root = tmp_path / str(case)
        root.mkdir()
        played += play(case, root, large=True)
    assert played > 20
