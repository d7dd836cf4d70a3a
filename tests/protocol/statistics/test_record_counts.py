"""Row counts in statistics."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.protocol.statistics.as_json import num_records


class TestNumRecords:
    @pytest.mark.conformance("STAT-01", "FILE-13")
    def test_invalid_text_has_no_count(self) -> None:
        counts = {
            '{"numRecords":5}': 5,
            '{"minValues":{"numRecords":7},"numRecords":3}': 3,
            '{"minValues":{"numRecords":7}}': None,
            '{"tags":"{\\"numRecords\\":9}"}': None,
            '{"numRecords":9223372036854775807}': 2**63 - 1,
            '{"numRecords":9223372036854775808}': None,
            '{"numRecords":1e2}': 100,
            '{"numRecords":1.5}': None,
            '{"numRecords":1e999999999}': None,
            '{"numRecords":1e99999999999999999999}': None,
            '{"numRecords":NaN}': None,
            '{"numRecords":-1}': None,
            '{"numRecords":"5"}': None,
            '{"numRecords":true}': None,
            '{"numRecords":null}': None,
            '{"numRecords":{}}': None,
            '{"numRecords":1,"numRecords":2}': 2,
            ' \n{"numRecords" :\n 6\r\n}\t': 6,
            '{"numRecords":8,"x":"} {"}': 8,
            '{"\\u006eumRecords":4}': 4,
            '{"numRecords":1}{"numRecords":2}': None,
            '{"numRecords":1}\n{"numRecords":2}': None,
            '{"numRecords":1} null {"numRecords":2}': None,
            '{"numRecords":1},{"numRecords":2}': None,
            '{"numRecords":1},': None,
            '{"numRecords":1,}': None,
            '{"numRecords":' + "1" * 5000 + "}": None,
            "{}": None,
            "{": None,
            "": None,
            "null": None,
            "5": None,
            '"numRecords"': None,
            "[]": None,
            "[" * 100_000: None,
            '{"a":' * 100_000 + "1" + "}" * 100_000: None,
        }
        assert num_records(pa.array(list(counts))).to_pylist() == list(counts.values())
        for text, count in counts.items():
            assert num_records(pa.array([text, None])).to_pylist() == [count, None], text[:60]

    def test_bad_rows_do_not_affect_good_ones(self) -> None:
        texts = [f'{{"numRecords":{row}}}' for row in range(10_000)]
        wanted: list[int | None] = list(range(10_000))
        for row in (0, 77, 4_999, 5_000, 9_999):
            texts[row], wanted[row] = ("{}{}", "", "{", "\n", '{"numRecords":"x"}')[row % 5], None
        assert num_records(pa.array(texts)).to_pylist() == wanted

    @pytest.mark.parametrize(
        "stats",
        [
            pa.chunked_array([['{"numRecords":1}'], [], [None, '{"numRecords":2}']], pa.string()),
            pa.array(['{"numRecords":1}', None, '{"numRecords":2}'], pa.large_string()),
            pa.array(['{"numRecords":1}', None, '{"numRecords":2}']).dictionary_encode(),
            pa.array(["", '{"numRecords":1}', None, '{"numRecords":2}', ""]).slice(1, 3),
        ],
        ids=["chunked", "large", "dictionary", "sliced"],
    )
    def test_every_layout_of_a_text_column_is_read(self, stats: Any) -> None:
        assert num_records(stats).to_pylist() == [1, None, 2]

    @pytest.mark.parametrize(
        "stats", [pa.array([], pa.string()), pa.nulls(3), pa.nulls(3, pa.string())], ids=str
    )
    def test_a_column_without_statistics_has_no_counts(self, stats: pa.Array) -> None:
        found = num_records(stats)
        assert (found.type, found.null_count) == (pa.int64(), len(stats))

    def test_text_that_is_not_utf_8_has_no_statistics(self) -> None:
        broken = pa.array([b'{"numRecords":1,"x":"\xff"}', b'{"numRecords":2}']).view(pa.string())
        assert num_records(broken).to_pylist() == [None, 2]
