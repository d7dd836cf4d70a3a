"""Recorded answers of Delta Spark: used for the same question about the same table alone."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import RECIPES
from tests.support.oracle.recordings import FOLDER, AnsweredError, Mode, RecordedSpark, Recording

INSERT = "INSERT INTO delta.`{}` VALUES (1)"
QUERY = "SELECT * FROM delta.`{}`"


class Imitation(DeltaSpark):
    """Answers from the names of the files of a table, and writes one more for each statement."""

    def __init__(self, path: Path, *, answer: str = "row") -> None:
        self._path, self._answer = path, answer

    def sql(self, statement: str) -> None:
        if "refused" in statement:
            raise RuntimeError(f"refused at {self._path}")
        log = self._path / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        number = len(list(log.iterdir()))
        (log / f"{number:020}.json").write_text(f'{{"by":"{self._answer}","id":"{uuid.uuid4()}"}}')

    def rows(self, query: str) -> list[str]:
        return [self._answer, *sorted(file.name for file in self._path.rglob("*.json"))]

    def forget(self) -> None:
        pass

    def configure(self, name: str, value: str | None) -> None:
        pass


def spark(file: Path, path: Path, mode: Mode, *, answer: str | None = "row") -> RecordedSpark:
    """Delta Spark with the recording in a file; without an answer, it must not be started."""

    def start() -> DeltaSpark:
        assert answer is not None, "Delta Spark is asked"
        return Imitation(path, answer=answer)

    return RecordedSpark(start, Recording.read(file), mode=mode)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The recording of a statement, a query and an error."""
    file, path = tmp_path / "recording.json.xz", tmp_path / "first" / "table"
    recorded = spark(file, path, "record")
    recorded.sql(INSERT.format(path))
    assert recorded.rows(QUERY.format(path)) == ["row", f"{0:020}.json"]
    with pytest.raises(AnsweredError, match="refused at /"):
        recorded.sql(f"DELETE FROM delta.`{path}` WHERE refused")
    recorded.recording.write()
    return file


def test_the_answers_and_what_was_written_come_back_elsewhere(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "second"
    again = spark(file, path, "recorded", answer=None)
    again.sql(INSERT.format(path))
    names = [f"{0:020}.json"]
    assert [name.name for name in path.rglob("*.json")] == names
    [first, second] = (
        table / "_delta_log" / names[0] for table in (path.parent / "first/table", path)
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_mtime_ns == second.stat().st_mtime_ns
    assert again.rows(QUERY.format(path)) == ["row", *names]
    with pytest.raises(AnsweredError, match=f"refused at {path}"):
        again.sql(f"DELETE FROM delta.`{path}` WHERE refused")
    assert (again.answered, again.asked) == (3, 0)


@pytest.mark.parametrize("change", ["file", "content", "setting", "query"])
def test_another_question_is_asked(file: Path, tmp_path: Path, change: str) -> None:
    path = tmp_path / "second"
    again = spark(file, path, "recorded")
    again.sql(INSERT.format(path))
    commit, query = path / "_delta_log" / f"{0:020}.json", QUERY.format(path)
    if change == "file":
        (path / "more").write_bytes(b"")
    elif change == "content":
        commit.write_bytes(commit.read_bytes() + b" ")
    elif change == "query":
        query += " LIMIT 1"
    again.configure("name", "value" if change == "setting" else None)
    assert len(again.rows(query)) == 2
    assert (again.answered, again.asked) == (1, 1)


def test_an_answer_that_is_no_longer_given_is_an_error(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "third"
    again = spark(file, path, "live", answer="another row")
    with pytest.raises(AssertionError, match="differently than recorded"):
        again.sql(INSERT.format(path))
    path = tmp_path / "second"
    spark(file, path, "recorded", answer=None).sql(INSERT.format(path))
    again = spark(file, path, "live", answer="another row")
    with pytest.raises(AssertionError, match="differently than recorded"):
        again.rows(QUERY.format(path))


def test_the_file_time_in_our_commits_has_no_influence(tmp_path: Path) -> None:
    file, path = tmp_path / "recording.json.xz", tmp_path / "table"
    commit = path / "_delta_log" / f"{0:020}.json"
    commit.parent.mkdir(parents=True)
    commit.write_text('{"add":{"modificationTime":1,"size":1}}')
    recorded = spark(file, path, "record")
    rows = recorded.rows(QUERY.format(path))
    recorded.recording.write()
    for text, asked in (('"modificationTime":2,"size":1', 0), ('"modificationTime":1,"size":2', 1)):
        commit.write_text(f'{{"add":{{{text}}}}}')
        again = spark(file, path, "recorded")
        assert again.rows(QUERY.format(path)) == rows
        assert again.asked == asked


def test_statements_of_the_session_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave the session"):
        spark(tmp_path / "none", tmp_path, "live").sql("SET name = value")


def test_each_recording_is_of_a_marked_module_and_all_are_small() -> None:
    folder = Path(__file__).parent
    recordings = {path for path in FOLDER.rglob("*.json.xz")}
    for recording in recordings - set((FOLDER / "tables").iterdir()):
        module = folder / recording.relative_to(FOLDER).with_suffix("").with_suffix(".py")
        assert "pytest.mark.recorded" in module.read_text(), recording
    assert {path.name.partition(".")[0] for path in (FOLDER / "tables").iterdir()} <= set(RECIPES)
    assert sum(path.stat().st_size for path in recordings) < 1_200_000
