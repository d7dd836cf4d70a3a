"""Wrong answers of a catalog, and wrong staged files: every verb refuses, in one line.

A run plays a fifth of the verbs with each case; `make nightly` plays all of them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.catalogs import credentials
from delta_maintenance.cli.main import main
from delta_maintenance.operations.core import names
from tests.fuzz.verbs import VERBS
from tests.support.catalogs.managed_tables import ManagedTables
from tests.support.servers.unity_delta import TOKEN, UnityServer, serve_unity
from tests.support.suite.play import PLAY
from tests.support.tables.managed import STAGED

pytestmark = [pytest.mark.server, pytest.mark.cases]

NAME = "uc://main.s.t0"
ENTRY, CONFIG, STATE = "/tables/main.s.t0", "/delta/v1/config", "/delta/v1/catalogs/main/"
REFUSED, CORRUPT = 3, 5
OTHER_ID = "99999999-2222-3333-4444-555555555555"
COMMANDS: Mapping[str, tuple[str, ...]] = {**{name: () for name in names()}, **VERBS}
"""The verbs with their options, and every operation."""
Answer = tuple[int, Any]
Tamper = Callable[[str, int, Any], Answer]


def body(part: str, change: Callable[[Any], Any]) -> Tamper:
    """Changes the successful answers to some requests."""

    def tamper(path: str, status: int, answer: Any) -> Answer:
        if part not in path or status != 200:
            return status, answer
        answer = copy.deepcopy(answer)
        return status, change(answer)

    return tamper


def with_fields(part: str, **fields: Any) -> Tamper:
    """Changes fields of an answer; `_` stands for a hyphen."""
    values = {name.replace("_", "-"): value for name, value in fields.items()}
    return body(part, lambda answer: {**answer, **values})


def without(part: str, field: str) -> Tamper:
    return body(part, lambda answer: {name: v for name, v in answer.items() if name != field})


def with_commit(**fields: Any) -> Tamper:
    """Changes fields of the newest commit."""
    values = {name.replace("_", "-"): value for name, value in fields.items()}

    def change(answer: Any) -> Any:
        newest, *others = answer["commits"]
        return {**answer, "commits": [{**newest, **values}, *others]}

    return body(STATE, change)


def with_commits(change: Callable[[list[Any]], Any]) -> Tamper:
    return body(STATE, lambda answer: {**answer, "commits": change(answer["commits"])})


def refusal(part: str, status: int) -> Tamper:
    def tamper(path: str, former: int, answer: Any) -> Answer:
        if part not in path:
            return former, answer
        return status, {"error": {"message": "m", "type": "SomeException", "code": status}}

    return tamper


LOST = "but the log ends at version 2"
LOSER = f"{3:020}.{3:08}-0000-4000-8000-0000000000ff.json"
NEITHER = "neither staged nor published"
NOT_LIKE_ONE = "does not answer like a catalog"
LEADS_NOWHERE = "commits that do not lead to its latest version"
ANSWERS: Mapping[str, tuple[Tamper, int, str]] = {
    "an empty state": (body(STATE, lambda _: {}), REFUSED, "states no ID of the table"),
    "a state without a byte": (body(STATE, lambda _: b""), REFUSED, "states no ID of the table"),
    "a state that is a list": (body(STATE, lambda _: []), REFUSED, NOT_LIKE_ONE),
    "a state that is null": (body(STATE, lambda _: None), REFUSED, NOT_LIKE_ONE),
    "the page of a proxy": (body(STATE, lambda _: b"<html>"), REFUSED, NOT_LIKE_ONE),
    "a state that is cut": (
        body(STATE, lambda answer: json.dumps(answer).encode()[:-20]),
        REFUSED,
        NOT_LIKE_ONE,
    ),
    "no commits": (without(STATE, "commits"), CORRUPT, LOST),
    "a filtered list": (with_commits(lambda _: []), CORRUPT, LOST),
    "commits that are null": (with_commits(lambda _: None), CORRUPT, LOST),
    "commits that are an object": (with_commits(lambda _: {"a": 1}), REFUSED, "an unknown form"),
    "commits that are texts": (with_commits(lambda _: ["a"]), REFUSED, "an unknown form"),
    "without the newest commit": (with_commits(lambda c: c[1:]), REFUSED, LEADS_NOWHERE),
    "without a commit between": (with_commits(lambda c: [c[0], c[2]]), REFUSED, LEADS_NOWHERE),
    "a commit twice": (with_commits(lambda c: [*c, c[0]]), REFUSED, LEADS_NOWHERE),
    "two commits of a version": (
        with_commits(lambda c: [{**c[0], "file-name": LOSER}, *c]),
        REFUSED,
        LEADS_NOWHERE,
    ),
    "no latest version": (without(STATE, "latest-table-version"), REFUSED, "no latest version"),
    "a latest version that is text": (
        with_fields(STATE, latest_table_version="3"),
        REFUSED,
        "no latest version",
    ),
    "a latest version that is true": (
        with_fields(STATE, latest_table_version=True),
        REFUSED,
        "no latest version",
    ),
    "a latest version that is null": (
        with_fields(STATE, latest_table_version=None),
        REFUSED,
        "no latest version",
    ),
    "an endless latest version": (
        with_fields(STATE, latest_table_version=2**63, commits=[]),
        REFUSED,
        "no latest version",
    ),
    "a latest version below 0": (
        with_fields(STATE, latest_table_version=-1, commits=[]),
        REFUSED,
        "no latest version",
    ),
    "an early latest version": (with_fields(STATE, latest_table_version=7), REFUSED, LEADS_NOWHERE),
    "another table": (
        with_fields(STATE, metadata={"table-uuid": OTHER_ID}),
        REFUSED,
        "was dropped and created again",
    ),
    "no metadata": (without(STATE, "metadata"), REFUSED, "states no ID of the table"),
    "a path": (with_commit(file_name="../../x.json"), REFUSED, "file '../../x.json' as version 3"),
    "a file of another version": (
        with_commit(file_name=LOSER.replace("3.", "2.", 1)),
        REFUSED,
        "as version 3",
    ),
    "the file of a rejected commit": (with_commit(file_name=LOSER), CORRUPT, "bytes instead of"),
    "a time that is text": (with_commit(timestamp="9"), REFUSED, "a commit in an unknown form"),
    "a size that is text": (with_commit(file_size="9"), REFUSED, "a commit in an unknown form"),
    "a size below 0": (with_commit(file_size=-1), REFUSED, "a commit in an unknown form"),
    "another size": (with_commit(file_size=9), CORRUPT, "bytes instead of 9"),
    "another time": (with_commit(timestamp=77), CORRUPT, "timestamp is 1003 instead of 77"),
    "an endless time": (with_commit(timestamp=10**30), REFUSED, "a commit in an unknown form"),
    "a commit below 0": (with_commit(version=-3), REFUSED, "as version -3"),
    "an empty entry": (body(ENTRY, lambda _: {}), REFUSED, "is no Delta table"),
    "an entry that is no JSON": (body(ENTRY, lambda _: b"<html>"), REFUSED, NOT_LIKE_ONE),
    "the entry of another table": (
        with_fields(ENTRY, name="other"),
        REFUSED,
        "states uc://main.s.other instead of",
    ),
    "a relative location": (
        body(ENTRY, lambda answer: {**answer, "storage_location": "x/y"}),
        REFUSED,
        "an unusable location",
    ),
    "no location": (without(ENTRY, "storage_location"), REFUSED, "does not state the location"),
    "no endpoints": (body(CONFIG, lambda _: {}), REFUSED, "the answer has no endpoints"),
    "endpoints that are a number": (with_fields(CONFIG, endpoints=5), REFUSED, "no endpoints"),
    **{
        f"{status} for {part}": (refusal(part, status), REFUSED, words)
        for part in (ENTRY, CONFIG, STATE)
        for status, words in {
            400: "refuses the request for",
            401: "rejects the credentials",
            403: "denies access to",
            404: "does not know",
            409: "cannot answer at present",
            429: "cannot answer at present",
            500: "cannot answer at present",
            503: "cannot answer at present",
        }.items()
        # Servers before the Delta API answer so.
        if (part, status) != (CONFIG, 404)
    },
}


def cut_after_a_line(file: Path) -> None:
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])


FILES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, LOST),
    "empty": (lambda file: file.write_bytes(b""), "0 bytes instead of"),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:-10]), "bytes instead of"),
    "cut after a line": (cut_after_a_line, "bytes instead of"),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"{}\n"), "bytes instead of"),
    "no JSON": (lambda file: file.write_bytes(b"x" * file.stat().st_size), "not valid JSON"),
    "of another version": (
        lambda file: file.write_bytes(
            file.with_name(file.name.replace("3.00000003", "2.00000002")).read_bytes()
        ),
        "timestamp is 1002 instead of 1003",
    ),
}


@pytest.fixture
def unity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    """A table with all its data files, and of whose three commits two are published."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with serve_unity() as server:
        monkeypatch.setenv("UNITY_CATALOG_URI", server.url)
        monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
        tables = ManagedTables(server, tmp_path)
        managed = tables.add()
        for _ in range(3):
            managed.ratify()
        managed.publish()
        managed.publish()
        for version in range(4):
            managed.store.put(f"f{version}", b"x")
        tables.state()
        yield server


def verbs_of(case: str) -> list[str]:
    """The verbs that a case is played with: each verb with some cases."""
    number = [*ANSWERS, *FILES].index(case)
    return [*COMMANDS] if PLAY == "all" else [*COMMANDS][number % 5 :: 5]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse_all(
    unity: UnityServer, case: str, folder: Path, capsys: Any, *, status: int, words: str
) -> None:
    before = files(folder)
    for verb in verbs_of(case):
        # A process asks anew what the server offers.
        credentials._client.cache_clear()
        name, *flags = verb.split()
        words_of_verb = words
        if name == "publish" and words == LOST:
            # It does not look for the end of the log.
            words_of_verb = NEITHER if case in FILES else "version 3 was reported to the catalog"
        assert (verb, main([name, NAME, *COMMANDS[verb], *flags])) == (verb, status)
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if " warning: " not in line]
        assert len(lines) == 1 and len(lines[0].encode()) <= 1024, verb
        # fsck prints the problem with its finding.
        assert words_of_verb in (out if status == CORRUPT and name == "fsck" else lines[0]), verb
        assert NAME in lines[0] and "; " in lines[0], verb
        if status == CORRUPT:
            assert ", version " in lines[0] and f"file _delta_log/{3:020}.json" in lines[0], verb
        assert not any(canary in out + err for canary in unity.canaries()), verb
        assert files(folder) == before, verb


@pytest.mark.parametrize("case", ANSWERS)
def test_a_wrong_answer_of_the_catalog_is_refused_by_every_verb(
    unity: UnityServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    unity.tamper, status, words = ANSWERS[case]
    refuse_all(unity, case, tmp_path, capsys, status=status, words=words)


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_staged_file_is_refused_by_every_verb(
    unity: UnityServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    damage, words = FILES[case]
    (file,) = (tmp_path / "t0" / STAGED).glob(f"{3:020}.*000000.json")
    damage(file)
    refuse_all(unity, case, tmp_path, capsys, status=CORRUPT, words=words)


@pytest.mark.parametrize(
    "tamper",
    [
        with_fields(STATE, allowed_maintenance_operations=5),
        with_fields(STATE, latest_table_version=2, commits=[]),
        with_commits(lambda commits: commits[:1]),
    ],
    ids=["permissions that are a number", "a late state", "published commits left out"],
)
def test_what_decides_nothing_is_not_refused(unity: UnityServer, tamper: Tamper) -> None:
    unity.tamper = tamper
    for verb in ("inspect", "health", "fsck", "publish"):
        assert main([verb, NAME]) == 0
