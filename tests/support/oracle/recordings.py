"""Recorded answers of Delta Spark, so that most runs of the tests need not start it.

An answer is kept with the digest of what it depends on: the release, the settings, the statement,
and the bytes of the tables that the statement names. What Spark wrote to them is kept with the
answer. A question without a recorded answer is asked.

Runs of a test give the same bytes, because `repeatable` replaces the clock and the IDs of the
product, and the times of the files that it writes. The digest leaves out what no answer depends on:
our version, and file times in commits.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import lzma
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from delta_maintenance import clock
from delta_maintenance.storage.core import FileStatus
from delta_maintenance.storage.local import LocalStore
from tests.support.oracle import delta_spark_tables
from tests.support.oracle.delta_spark import (
    DELTA_RELEASE,
    DELTA_SPARK,
    DeltaSpark,
    checkpoint_files,
    decode,
)

Mode = Literal["recorded", "live", "record"]
FOLDER = Path(__file__).parents[2] / "oracle" / "recordings" / DELTA_RELEASE
_STATEMENTS = re.compile(
    r"\s*(ALTER TABLE|CREATE TABLE|DELETE|DESCRIBE|INSERT|MERGE|OPTIMIZE|RESTORE|SELECT|TRUNCATE"
    r"|UPDATE)\b"
)
"""Statements that change nothing of the session."""
_PATHS = re.compile(r"[`'](/[^`']+)[`']")
_NO_INFLUENCE = re.compile(rb'"modificationTime":\d+|"engineInfo":"delta-maintenance/[^"]*"')
_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{12,}|\d+-\d+-\d+T[\d:.]+Z"
    r"|(?<=\"size\":)\d+|(?<=\"operationMetrics\":){[^}]*}"
    r"|\"storageType\":\"u\",\"pathOrInlineDv\":\"[^\"]+\",\"offset\":\d+"
    r"|#\d+L?|(?<=\"path\":\")\w\w/(?=part-)"
)
"""What differs each time that Spark makes the same commit."""
_STATS = re.compile(r'"stats":"(?:[^"\\]|\\.)*"')
_LONG = "interval 1000 weeks"


class AnsweredError(Exception):
    """The recorded message of an error of Delta Spark."""


@dataclass(slots=True)
class Recording:
    """The answers for one module of tests, and the instant at which each test was recorded."""

    file: Path
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    instants: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Recording:
        """Reads a recording; empty without a file."""
        if not file.exists():
            return cls(file)
        content = json.loads(lzma.decompress(file.read_bytes()))
        texts = content["texts"]
        for answer in content["answers"].values():
            if "answer" in answer:
                answer["answer"] = texts[answer["answer"]]
            for change in answer["changes"]:
                change["wrote"] = {
                    name: (time, texts[number]) for name, (time, number) in change["wrote"].items()
                }
        return cls(file, content["answers"], content["instants"])

    def write(self) -> None:
        """Writes the recording, with each text once."""
        numbers: dict[str, int] = {}

        def number_of(text: str) -> int:
            return numbers.setdefault(text, len(numbers))

        answers = {}
        for key, answer in sorted(self.answers.items()):
            answers[key] = {**answer, "changes": []}
            if "answer" in answer:
                answers[key]["answer"] = number_of(answer["answer"])
            for change in answer["changes"]:
                written = sorted(change["wrote"].items())
                wrote = {name: (time, number_of(text)) for name, (time, text) in written}
                answers[key]["changes"].append({**change, "wrote": wrote})
        content = {"answers": answers, "instants": self.instants, "texts": list(numbers)}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        compressed = lzma.compress(json.dumps(content, ensure_ascii=False).encode(), preset=6)
        self.file.write_bytes(compressed)


@dataclass
class RecordedSpark(DeltaSpark):
    """Delta Spark as tests ask it; started when a question has no recorded answer.

    With `live`, every question is asked, and an answer that differs from the recorded one is an
    error.
    """

    start: Callable[[], DeltaSpark]
    recording: Recording
    mode: Mode = "live"
    compared: bool = True
    """Whether the module has recordings at all."""
    answered: int = 0
    """The questions of the running test that Spark was not asked."""
    asked: int = 0
    used: set[str] = field(default_factory=set)
    """The keys of the answers that the tests of this run have used."""
    _live: DeltaSpark | None = None
    _settings: dict[str, str] = field(default_factory=dict)

    def live(self) -> DeltaSpark:
        """Returns the running Delta Spark, which knows nothing of the tables from before."""
        if self._live is None:
            self._live = self.start()
            for name, value in self._settings.items():
                self._live.configure(name, value)
        return self._live

    def __getattr__(self, name: str) -> Any:
        # What cannot be recorded.
        if self.compared:
            raise AttributeError(f"{name}: there are no recorded answers to this")
        return getattr(self.live(), name)

    def configure(self, name: str, value: str | None) -> None:
        """Changes a session setting; None restores its default."""
        self._settings.pop(name, None)
        if value is not None:
            self._settings[name] = value
        if self._live is not None:
            self._live.configure(name, value)

    def sql(self, statement: str) -> None:
        """Runs a statement for its effect."""
        self._ask_sql("sql", statement)

    def write(
        self,
        path: Path,
        query: str,
        *,
        mode: str = "append",
        partition_by: Sequence[str] = (),
        **options: str,
    ) -> None:
        """Writes the rows of a query through the DataFrame writer, with its options."""
        more: dict[str, Any] = {"mode": mode, "partition_by": list(partition_by), **options}
        self._ask(["write", query, more], [path], lambda spark: spark.write(path, query, **more))

    def rows(self, query: str) -> list[str]:
        """Returns the rows of a query as JSON texts, sorted."""
        return list(self._ask_sql("rows", query))

    def history(self, path: Path) -> list[dict[str, Any]]:
        """`version`, `ms` (since 1970-01-01 UTC) and `operation` of every commit, newest first."""
        times = [file.stat().st_mtime_ns for file in sorted((path / "_delta_log").glob("*.json"))]
        return list(self._ask(["history", times], [path], lambda spark: spark.history(path)))

    def data_files(self, path: Path, predicate: str) -> set[str]:
        """Returns the names of the data files that Spark cannot skip for a predicate."""
        question = ["data_files", predicate]
        return set(
            self._ask(question, [path], lambda spark: sorted(spark.data_files(path, predicate)))
        )

    def supports(self, feature: str) -> bool:
        """Whether this release knows a table feature with that name."""
        return bool(self._ask(["supports", feature], [], lambda spark: spark.supports(feature)))

    def forget(self) -> None:
        """Drops every cached snapshot, so that the next access to a table reads its log."""
        if self._live is not None:
            self._live.forget()

    def version(self, path: Path) -> int:
        """Returns the latest version."""
        return int(
            self._ask(["version"], [path], lambda spark: int(spark.snapshot(path).version()))
        )

    def state(self, path: Path) -> list[dict[str, Any]]:
        """Returns every action of the reconciled state of the latest version."""
        lines = self._ask(
            ["state"], [path], lambda spark: sorted(spark.state_lines(spark.snapshot(path)))
        )
        return [decode(line) for line in lines]

    def checkpoint_files(self, path: Path) -> list[str]:
        """Returns the names of the top-level checkpoint files of the latest version."""
        return list(
            self._ask(
                ["checkpoint_files"], [path], lambda spark: checkpoint_files(spark.snapshot(path))
            )
        )

    def replay(self, path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yields the state at every version, by Delta Spark's own replay of the commits alone."""
        for version, lines in self._ask(
            ["replay"], [path], lambda spark: [list(each) for each in spark.replay_lines(path)]
        ):
            yield version, [decode(line) for line in lines]

    def kernel_files(self, path: Path) -> set[tuple[str, str | None]]:
        """Returns the live files by Delta's kernel for Java."""
        found = self._ask(
            ["kernel_files"],
            [path],
            lambda spark: sorted(map(list, spark.kernel_files(path)), key=str),
        )
        return {(name, vector) for name, vector in found}

    def checkpoint(self, path: Path) -> None:
        """Lets Delta Spark write a checkpoint of the latest version."""
        self._ask(["checkpoint"], [path], lambda spark: spark.checkpoint(path))

    def hint(self, text: str) -> dict[str, Any]:
        """Returns `_last_checkpoint` as Delta Spark parses it."""
        return dict(self._ask(["hint", text], [], lambda spark: spark.read_hint(text)))

    def table(self, name: str, path: Path) -> None:
        """Makes the table of that recipe. It is recorded once, by its recipe.

        Nothing in it expires, so that its age has no influence.
        """
        recipe = delta_spark_tables.RECIPES[name]
        if not self.compared:
            recipe.build(self.live(), path)
            return
        helpers = (
            recipe.build,
            delta_spark_tables.create,
            delta_spark_tables.insert,
            delta_spark_tables.statistics,
        )
        key = _digest([DELTA_SPARK, *map(inspect.getsource, helpers)])
        recording = Recording.read(FOLDER / "tables" / f"{name}.json.xz")
        recorded = recording.answers.get(key)
        if recorded is None or self.mode == "live":
            self.asked += 1
            with ExitStack() as stack:
                for kind in ("deletedFile", "log"):
                    default = f"spark.databricks.delta.properties.defaults.{kind}RetentionDuration"
                    stack.enter_context(self.live().setting(default, _LONG))
                recipe.build(self.live(), path)
            table = {"changes": [_changes({}, _read(path))]}
            if recorded is None:
                recording.answers = {key: table}
                if self.mode == "record":
                    recording.write()
                return
            _require_same(table, recorded, f"the recipe {name}")
            self.forget()
            shutil.rmtree(path)
        _apply(recorded["changes"][0], path)

    def _ask_sql(self, kind: str, statement: str) -> Any:
        if self.compared and not _STATEMENTS.match(statement):
            raise ValueError(f"not known to leave the session as it is: {statement}")
        paths = [Path(path) for path in dict.fromkeys(_PATHS.findall(statement))]
        return self._ask([kind, statement], paths, lambda spark: getattr(spark, kind)(statement))

    def _ask(self, question: list[Any], paths: list[Path], run: Callable[[DeltaSpark], Any]) -> Any:
        """Returns the answer to a question about these tables, with its effects on them."""
        if not self.compared:
            return run(self.live())
        before = [_read(path) for path in paths]
        text = _without(json.dumps([question, self._settings], sort_keys=True), paths)
        key = _digest([DELTA_SPARK, text, *map(_digest_files, before)])
        recorded = self.recording.answers.get(key)
        self.used.add(key)
        if self.mode != "live" and recorded is not None:
            self.answered += 1
            if any(change["wrote"] or change["deleted"] for change in recorded["changes"]):
                self.forget()
        else:
            self.asked += 1
            entry = self._ask_live(before, paths, run)
            if self.mode == "record":
                self.recording.answers[key] = entry
            if recorded is None:
                recorded = entry
            else:
                _require_same(entry, recorded, text)
            # Spark names files at random; a recording continues with those that it names.
            self.forget()
            for path, files in zip(paths, before, strict=True):
                _apply(_changes(_read(path), files), path)
        for path, change in zip(paths, recorded["changes"], strict=True):
            _apply(change, path)
        if "error" in recorded:
            raise AnsweredError(_with(recorded["error"], paths))
        return json.loads(_with(recorded["answer"], paths))

    def _ask_live(
        self, before: list[dict[str, Any]], paths: list[Path], run: Callable[[DeltaSpark], Any]
    ) -> dict[str, Any]:
        spark = self.live()
        try:
            answer = {"answer": _without(json.dumps(run(spark)), paths)}
        except Exception as error:
            answer = {"error": _without(str(error), paths)}
        changes = [_changes(files, _read(path)) for path, files in zip(paths, before, strict=True)]
        written = [content for change in changes for _, content in change["wrote"].values()]
        if any(str(path) in content for path in paths for content in written):
            raise ValueError("what Spark wrote has the address of a table, which changes each time")
        return {**answer, "changes": changes}


class _Ids:
    """IDs in place of random ones, the same in each run of a test."""

    def __init__(self, seed: str) -> None:
        self._seed, self._number = seed, 0

    def uuid4(self) -> uuid.UUID:
        self._number += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self._seed} {self._number}")


def repeatable(monkeypatch: pytest.MonkeyPatch, seed: str, instant: datetime) -> None:
    """Lets the clock of the product show one instant, and its IDs depend on `seed` alone.

    The files that it has just written are not newer than its clock.
    """
    monkeypatch.setattr(clock, "uuid", _Ids(seed))
    monkeypatch.setattr(clock, "now", lambda: instant)
    stat = LocalStore.stat

    def stat_not_after(store: LocalStore, path: str) -> FileStatus | None:
        status = stat(store, path)
        if status is None:
            return None
        return replace(status, modified_ms=min(status.modified_ms, clock.epoch_millis(instant)))

    monkeypatch.setattr(LocalStore, "stat", stat_not_after)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _digest_files(files: dict[str, tuple[int, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, (_, content) in sorted(files.items()):
        if name.endswith((".json", "_last_checkpoint")):
            content = _NO_INFLUENCE.sub(b"", content)
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, tuple[int, bytes]]:
    """The files of a table: their times in nanoseconds, and contents."""
    return {
        file.relative_to(path).as_posix(): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def _changes(
    before: dict[str, tuple[int, bytes]], after: dict[str, tuple[int, bytes]]
) -> dict[str, Any]:
    return {
        "wrote": {
            name: (time, content.decode("latin-1"))
            for name, (time, content) in after.items()
            if before.get(name) != (time, content)
        },
        "deleted": sorted(before.keys() - after.keys()),
    }


def _apply(change: dict[str, Any], path: Path) -> None:
    for name in change["deleted"]:
        (path / name).unlink()
    for name, (time, content) in change["wrote"].items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("latin-1"))
        os.utime(file, ns=(time, time))


def _comparable(entry: dict[str, Any]) -> Any:
    """The part of an answer that is the same each time: the commits without what is random."""
    commits = [
        sorted(_without_chance(content).splitlines())
        for change in entry["changes"]
        for name, (_, content) in sorted(change["wrote"].items())
        if re.fullmatch(r"_delta_log/\d{20}\.json", name)
    ]
    return commits, entry.get("answer"), "error" in entry


def _without_chance(commit: str) -> str:
    # Which rows come to which of several files depends on the order in which tasks end.
    has_files = commit.count('{"add":') > 1
    return _RANDOM.sub("?", _STATS.sub("?", commit) if has_files else commit)


def _require_same(entry: dict[str, Any], recorded: dict[str, Any], question: str) -> None:
    found, expected = _comparable(entry), _comparable(recorded)
    if found != expected:
        raise AssertionError(
            f"Delta Spark answers {question} differently than recorded; delete its recording in "
            f"{FOLDER} and run --oracle=record:\n{found}\n{expected}"
        )


def _without(text: str, paths: list[Path]) -> str:
    for number, path in enumerate(paths):
        text = text.replace(str(path), f"{{table {number}}}")
    return text


def _with(text: str, paths: list[Path]) -> str:
    for number, path in enumerate(paths):
        text = text.replace(f"{{table {number}}}", str(path))
    return text
