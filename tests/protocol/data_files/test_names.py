"""Names of new data files: legal everywhere, and spelt in the log so that they are found again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.data_files.names import FileNaming, log_path
from delta_maintenance.storage.core.paths import check_path, decode_log_path

UUID = "0123abcd-0000-4000-8000-000000000000"
values = st.none() | st.text()
names = st.text(min_size=1)


@given(st.dictionaries(names, values, max_size=2), st.sampled_from(["zstd", "snappy", "none"]))
def test_every_name_is_a_clean_path_and_is_encoded_once(
    partition: dict[str, str | None], codec: str
) -> None:
    # Text of the log has no lone surrogates: JSON is UTF-8.
    partition = {
        key: value
        for key, value in partition.items()
        if f"{key}{value}".isascii() or not any("\ud800" <= c <= "\udfff" for c in f"{key}{value}")
    }
    naming = FileNaming(partition_columns=tuple(partition))
    name = naming.name(partition, 3, UUID, codec)
    assert check_path(name) == name
    assert decode_log_path(log_path(name)) == name
    assert not any(part[0] in "._" for part in name.split("/"))
    assert all(len(part.encode()) < 256 for part in name.split("/"))
    assert "#" not in log_path(name) and "?" not in log_path(name)


def test_folders_are_partitions_unless_prefixes_are_random() -> None:
    partition: dict[str, str | None] = {"d": "2024-01-01"}
    plain = FileNaming.of({}, ["d"], "none")
    assert plain.name(partition, 0, UUID, "zstd") == (
        f"d=2024-01-01/part-00000-{UUID}-c000.zstd.parquet"
    )
    spread = {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "4"}
    assert FileNaming.of(spread, ["d"], "none").name(partition, 0, UUID, "none") == (
        f"0123/part-00000-{UUID}-c000.parquet"
    )
    assert FileNaming.of({}, ["d"], "name").name(partition, 0, UUID, "none").startswith("01/part-")
    assert FileNaming.of({}, [], "none").name({}, 0, UUID, "none").startswith("part-")
    # Readers take a folder with such a name for hidden.
    assert FileNaming.of({}, ["_d"], "none").name({"_d": "1"}, 0, UUID, "none").startswith("01/")
