"""Real tables: sound but for what is known of them, and their checksums agree with their logs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from delta_maintenance import open_table
from delta_maintenance.errors import NotADeltaTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.examination import examine

NOW = datetime(2026, 11, 1, tzinfo=UTC)

LOG_ONLY = {
    "deltars-COVID-19_NYT": 8,
    "deltars-checkpoint_with_partitions": 2,
    "deltars-checkpoints": 12,
    "deltars-checkpoints_vacuumed": 12,
    "deltars-err-table_a": 130,
    "deltars-err-table_g": 100,
    "deltars-latest_not_checkpointed": 1,
    "golden-checkpoint": 1,
    "golden-deltalog-commit-info": 1,
    "golden-log-replay-special-characters-b": 1,
    "golden-parquet-decimal-dictionaries-v1": 1,
    "golden-update-deleted-directory": 10,
    "kernelrs-with_checkpoint_no_last_checkpoint": 1,
    "spark-table-with-dv-gigantic": 1,
}
"""Tables that were published without their data files, and how many of them are live."""

KNOWN: dict[str, dict[str, int]] = {
    # Column mapping at reader version 3 is in only one of the two lists.
    "dat-iceberg_compat_v1": {"misplaced-feature": 1},
    "deltars-COVID-19_NYT": {"unknown-file": 3},
    # Made without commit 12, and with a gap before the checkpoint.
    "deltars-err-table_c": {"unreadable-version": 1, "log-gap": 1},
    "deltars-err-table_g": {"history-gap": 1},
    "deltars-table_with_liquid_clustering": {"unknown-file": 3},
    # Made to ask what is the same path.
    **{
        name: {"remove-of-absent-file": 1, "doubled-file": 1, "two-spellings": 1}
        for prefix in ("golden", "kernelrs-golden")
        for name in (f"{prefix}-canonicalized-paths-special-{kind}" for kind in "ab")
    },
    "golden-corrupted-last-checkpoint-kernel": {"damaged-hint": 1},
    "golden-deltalog-state-reconstruction-from-checkpoint-missing-metadata": {
        "unreadable-version": 1,
        "unreadable-checkpoint": 1,
    },
    "golden-deltalog-state-reconstruction-without-metadata": {"unreadable-version": 1},
    # Written by engines of a preview.
    "golden-spark-variant-checkpoint": {"draft-feature": 1},
    "golden-type-widening": {"draft-feature": 1},
    "golden-type-widening-nested": {"draft-feature": 1},
    "spark-variant-stats-nested-no-checkpoint": {"draft-feature": 1},
    "spark-variant-stats-no-checkpoint": {"draft-feature": 1},
    "spark-variant-stats-state-reconstruction": {"draft-feature": 1},
    "kernel-catalog-owned-preview": {"missing-feature": 1},
    # Compactions that contain one file as an add and as a remove.
    "kernelrs-compacted-log-files-table": {"compaction-differs": 3},
    # Changed by hand after Hadoop had noted their checksums.
    "golden-checkpoint": {"stale-hadoop-checksum": 1},
    "kernelrs-cdf-column-mapping-name-mode-3-7": {"stale-hadoop-checksum": 2},
    # A deliberately wrong checksum.
    "kernelrs-crc-full": {"checksum-differs": 8, "lost-clustering": 1},
    # Put together from two tables.
    "kernelrs-parquet_row_group_skipping": {"checkpoint-differs": 1},
    # Its deletion vector has a name that only tests give.
    "spark-table-with-dv-small": {"missing-deletion-vector": 1},
    "spark-table-with-dv-gigantic": {"missing-deletion-vector": 1},
    "spark-transaction_log_schema_evolvability": {"unknown-action": 2},
}

NO_TABLES = {"kernelrs-crc-malformed", "kernelrs-golden-no-delta-log-folder"}
UNSUPPORTED = {
    "deltars-err-table_d",
    "deltars-err-table_e",
    "deltars-err-table_h",
    "golden-deltalog-invalid-protocol-version",
}


@pytest.mark.conformance("CRC-03", "CRC-08", "COMP-10", "FILE-03", "DV-07", "DV-09", "LOG-02")
def test_real_tables_have_their_known_findings(corpus: Path) -> None:
    found: dict[str, dict[str, int]] = {}
    tables = sorted(path for path in corpus.iterdir() if path.is_dir() and path.name != "expected")
    for path in tables:
        if path.name in NO_TABLES | UNSUPPORTED:
            with pytest.raises((NotADeltaTableError, UnsupportedFeatureError)):
                examine(open_table(str(path)), now=NOW, deep=True)
            continue
        counts = examine(open_table(str(path)), now=NOW, deep=True).findings.counts
        if counts:
            found[path.name] = dict(counts)

    expected = {name: dict(counts) for name, counts in KNOWN.items()}
    for name, count in LOG_ONLY.items():
        expected.setdefault(name, {})["missing-data-file"] = count
    assert len(tables) > 100
    assert found == expected


@pytest.mark.conformance("CRC-02")
def test_a_damaged_checksum_is_a_finding_and_stops_nothing(corpus: Path, tmp_path: Path) -> None:
    (malformed,) = (corpus / "kernelrs-crc-malformed" / "_delta_log").glob("[0-9]*.crc")
    log = tmp_path / "_delta_log"
    log.mkdir()
    for commit in (corpus / "dat-with_checkpoint" / "_delta_log").glob("[0-9]*.json"):
        (log / commit.name).write_bytes(commit.read_bytes())
    (log / malformed.name).write_bytes(malformed.read_bytes())

    found = examine(open_table(str(tmp_path)), now=NOW, files=False)

    assert found.findings.counts == {"unreadable-checksum": 1}
    assert found.snapshot is not None
