"""Names in `_delta_log`: valid and invalid names, parsing and rendering."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.delta_log import LogFile, LogFileKind, parse_log_file_name
from delta_maintenance.protocol.delta_log import file_names as log_files

UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
V0 = "0" * 20
V7 = "00000000000000000007"
V9 = "00000000000000000009"
P1, P2, P3 = "0000000001", "0000000002", "0000000003"
TOO_LATE = str(2**63).zfill(20)

KNOWN = [
    LogFile(name=f"{V0}.json", kind=LogFileKind.COMMIT, version=0, encoding="json"),
    LogFile(name=f"{V7}.json", kind=LogFileKind.COMMIT, version=7, encoding="json"),
    LogFile(
        name=f"{2**63 - 1:020d}.json", kind=LogFileKind.COMMIT, version=2**63 - 1, encoding="json"
    ),
    LogFile(
        name=f"{V7}.checkpoint.parquet",
        kind=LogFileKind.CLASSIC_CHECKPOINT,
        version=7,
        encoding="parquet",
    ),
    LogFile(
        name=f"{V7}.checkpoint.{P2}.{P3}.parquet",
        kind=LogFileKind.MULTIPART_CHECKPOINT,
        version=7,
        part=2,
        parts=3,
        encoding="parquet",
    ),
    LogFile(
        name=f"{V7}.checkpoint.{P1}.{P1}.parquet",
        kind=LogFileKind.MULTIPART_CHECKPOINT,
        version=7,
        part=1,
        parts=1,
        encoding="parquet",
    ),
    LogFile(
        name=f"{V7}.checkpoint.{UUID}.json",
        kind=LogFileKind.UUID_CHECKPOINT,
        version=7,
        uuid=UUID,
        encoding="json",
    ),
    LogFile(
        name=f"{V7}.checkpoint.{UUID.upper()}.parquet",
        kind=LogFileKind.UUID_CHECKPOINT,
        version=7,
        uuid=UUID.upper(),
        encoding="parquet",
    ),
    LogFile(
        name=f"{V7}.{V9}.compacted.json",
        kind=LogFileKind.COMPACTION,
        version=7,
        end_version=9,
        encoding="json",
    ),
    LogFile(name=f"{V7}.crc", kind=LogFileKind.CHECKSUM, version=7),
    LogFile(name="_last_checkpoint", kind=LogFileKind.LAST_CHECKPOINT),
    LogFile(name="_last_vacuum_info", kind=LogFileKind.LAST_VACUUM_INFO),
    LogFile(
        name=f"_sidecars/{V7}.checkpoint.{P1}.{P2}.{UUID}.parquet",
        kind=LogFileKind.SIDECAR,
        version=7,
        part=1,
        parts=2,
        uuid=UUID,
        encoding="parquet",
    ),
    LogFile(name=f"_sidecars/{UUID}.parquet", kind=LogFileKind.SIDECAR, encoding="parquet"),
    LogFile(name="_sidecars/any name.parquet", kind=LogFileKind.SIDECAR, encoding="parquet"),
    LogFile(
        name=f"_staged_commits/{V7}.{UUID}.json",
        kind=LogFileKind.STAGED_COMMIT,
        version=7,
        uuid=UUID,
        encoding="json",
    ),
    LogFile(name=f".{V7}.json.crc", kind=LogFileKind.HADOOP_CHECKSUM),
    LogFile(name=f".{V7}.crc.crc", kind=LogFileKind.HADOOP_CHECKSUM),
    LogFile(name="._last_checkpoint.crc", kind=LogFileKind.HADOOP_CHECKSUM),
    LogFile(name=f"_sidecars/.{UUID}.parquet.crc", kind=LogFileKind.HADOOP_CHECKSUM),
    LogFile(name=f"{V7}.tmp", kind=LogFileKind.TEMPORARY),
    LogFile(name=f"{V7}.json.tmp", kind=LogFileKind.TEMPORARY),
    LogFile(name=f"{V7}.checkpoint.parquet.tmp", kind=LogFileKind.TEMPORARY),
    LogFile(name=f".{V7}.json.{UUID}.tmp", kind=LogFileKind.TEMPORARY),
    LogFile(name=f"_commit_{UUID}.json.tmp", kind=LogFileKind.TEMPORARY),
    LogFile(name=f"_sidecars/.{UUID}.parquet.tmp", kind=LogFileKind.TEMPORARY),
]

UNKNOWN = [
    "",
    "1.json",
    f"{V7[1:]}.json",
    f"0{V7}.json",
    f"{V7}.json\n",
    f"{V7}.JSON",
    f"{V7}json",
    f" {V7}.json",
    f"-{V7[1:]}.json",
    f"٠{V7[1:]}.json",
    f"{TOO_LATE}.json",
    f"{'9' * 20}.checkpoint.parquet",
    f"_delta_log/{V7}.json",
    f"other/{V7}.json",
    f"{V7}.json.bak",
    f"{V7}.{UUID}.json",
    f"{V7}.checkpoint.json",
    f"{V7}.checkpoint.parquet.crc",
    f"{V7}.checkpoint.1.2.parquet",
    f"{V7}.checkpoint.0000000000.{P2}.parquet",
    f"{V7}.checkpoint.{P3}.{P2}.parquet",
    f"{V7}.checkpoint.{P1}.{P2}.json",
    f"{V7}.checkpoint.{P1}.{P2}.{UUID}.parquet",
    f"{V7}.checkpoint.{UUID[:-1]}.json",
    f"{V7}.checkpoint.{UUID.replace('-', '')}.json",
    f"{V7}.checkpoint.{UUID.replace('3', 'g')}.parquet",
    f"{V7}.checkpoint.{UUID}.avro",
    f"{V7}.{V7}.compacted.json",
    f"{V9}.{V7}.compacted.json",
    f"{V7}.{TOO_LATE}.compacted.json",
    f"{V7}.{V9}.compact.json",
    "7.9.compacted.json",
    f"_commits/{V7}.{UUID}.json",
    f"_staged_commits/{V7}.json",
    f"_sidecars/{V7}.checkpoint.{P3}.{P2}.{UUID}.parquet",
    f"_sidecars/nested/{UUID}.parquet",
    f"_sidecars/{UUID}.json",
    f"_sidecars/.{UUID}.parquet",
    f"{V7}.0000000000.stats.json",
    f"_autostats/{V7}.0000000000.stats.json",
    ".s3-optimization-0",
    "_last_checkpoint.bak",
    "_LAST_CHECKPOINT",
    "x.tmp",
    "_commit_1.json.tmp",
    "_sidecars/",
    "_sidecars",
]


@pytest.mark.conformance("LOG-01", "CKPT-15", "COMP-01")
@pytest.mark.parametrize("expected", KNOWN, ids=lambda file: file.name)
def test_known_names_are_parsed(expected: LogFile) -> None:
    assert parse_log_file_name(expected.name) == expected


@pytest.mark.conformance("LOG-01", "CKPT-15", "COMP-01")
@pytest.mark.parametrize("name", UNKNOWN)
def test_other_names_are_unknown(name: str) -> None:
    assert parse_log_file_name(name) == LogFile(name=name, kind=LogFileKind.UNKNOWN)


@given(st.text())
def test_the_parser_never_raises(name: str) -> None:
    assert parse_log_file_name(name).name == name


versions = st.integers(0, 2**63 - 1)
parts = st.integers(2, 10**10 - 1).flatmap(
    lambda count: st.tuples(st.integers(1, count), st.just(count))
)
uuids = st.uuids().map(str)


@pytest.mark.conformance("LOG-01", "CKPT-15")
@given(versions, parts, uuids, st.sampled_from(["json", "parquet"]))
def test_written_names_are_parsed(
    version: int, part_of: tuple[int, int], uuid: str, encoding: log_files.Encoding
) -> None:
    part, count = part_of
    written = {
        LogFileKind.COMMIT: log_files.commit_name(version),
        LogFileKind.CHECKSUM: log_files.checksum_name(version),
        LogFileKind.CLASSIC_CHECKPOINT: log_files.classic_checkpoint_name(version),
        LogFileKind.MULTIPART_CHECKPOINT: log_files.multipart_checkpoint_name(version, part, count),
        LogFileKind.UUID_CHECKPOINT: log_files.uuid_checkpoint_name(version, uuid, encoding),
        LogFileKind.SIDECAR: f"{log_files.SIDECAR_DIRECTORY}/"
        f"{log_files.version_prefix(version)}.checkpoint.{part:010}.{count:010}.{uuid}.parquet",
    }
    for kind, name in written.items():
        file = parse_log_file_name(name)
        assert (file.kind, file.version) == (kind, version)
        assert name.rpartition("/")[2].startswith(log_files.version_prefix(version))
        if file.part is not None:
            assert (file.part, file.parts) == (part, count)
        if file.uuid is not None:
            assert file.uuid == uuid
        checksum = parse_log_file_name(log_files.hadoop_checksum_name(name))
        assert checksum.kind is LogFileKind.HADOOP_CHECKSUM
    assert parse_log_file_name(written[LogFileKind.UUID_CHECKPOINT]).encoding == encoding


@pytest.mark.conformance("COMP-01")
@given(versions, versions)
def test_a_compaction_name_requires_an_ascending_range(start: int, end: int) -> None:
    if start >= end:
        with pytest.raises(InvalidRequestError):
            log_files.compaction_name(start, end)
    else:
        file = parse_log_file_name(log_files.compaction_name(start, end))
        assert (file.kind, file.version, file.end_version) == (LogFileKind.COMPACTION, start, end)


@given(versions, versions)
def test_names_sort_by_version(first: int, second: int) -> None:
    by_name = log_files.commit_name(first) < log_files.commit_name(second)
    assert by_name == (first < second)


@pytest.mark.parametrize(
    "write",
    [
        lambda: log_files.commit_name(-1),
        lambda: log_files.commit_name(2**63),
        lambda: log_files.multipart_checkpoint_name(7, 1, 1),
        lambda: log_files.multipart_checkpoint_name(7, 0, 2),
        lambda: log_files.multipart_checkpoint_name(7, 3, 2),
        lambda: log_files.uuid_checkpoint_name(7, "x", "json"),
    ],
)
def test_impossible_names_are_refused(write: object) -> None:
    assert callable(write)
    with pytest.raises(InvalidRequestError):
        write()


@pytest.mark.conformance("LOG-01")
def test_names_of_the_corpus_are_known(corpus: Path) -> None:
    unknown = set()
    for log in corpus.rglob("_delta_log"):
        for path in log.rglob("*"):
            name = path.relative_to(log).as_posix()
            if path.is_file() and parse_log_file_name(name).kind is LogFileKind.UNKNOWN:
                unknown.add(name.partition("/")[0] if "/" in name else name)
    assert unknown == {
        ".s3-optimization-0",
        ".s3-optimization-1",
        ".s3-optimization-2",
        "_autostats",
    }
