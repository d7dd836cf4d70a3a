"""A digest of the files that a vacuum deletes, so that an approval covers exactly these files.

The paths are divided into groups by their hashes. The digest of a group is the SHA-256 of its
sorted paths, and the digest of all is the SHA-256 of the groups' digests. It depends neither on the
order of the paths nor on the engine, and only one group has to be sorted at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.key_hash import hash_texts

GROUPS = 256


def path_digest(batches: Iterable[pa.Array]) -> str:
    """Returns the digest of paths in any order, all in memory."""
    paths = pa.chunked_array(list(batches), pa.string())
    return combined_digest(
        {group: group_digest([paths.take(pa.array(rows))]) for group, rows in grouped(paths)}
    )


def grouped(paths: pa.ChunkedArray) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields the row numbers of the paths in each group."""
    if not len(paths):
        return
    hashes = np.concatenate([hash_texts(chunk) for chunk in paths.chunks])
    group = (hashes >> np.uint64(56)).astype(np.int64)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=GROUPS))
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if end > start:
            yield number, order[start:end]


def group_digest(batches: Iterable[pa.Array | pa.ChunkedArray]) -> bytes:
    """Returns the digest of all paths of one group."""
    chunks = [
        chunk.cast(pa.large_string())
        for batch in batches
        for chunk in (batch.chunks if isinstance(batch, pa.ChunkedArray) else [batch])
    ]
    paths = pa.concat_arrays(chunks)
    paths = paths.take(pc.array_sort_indices(paths))
    lengths = pc.binary_length(paths).to_numpy().astype("<i8")
    digest = hashlib.sha256(len(paths).to_bytes(8, "little"))
    # The lengths are included, because different paths can have the same concatenation.
    digest.update(lengths.tobytes())
    _, offsets, data = paths.buffers()
    first, last = np.frombuffer(offsets, np.int64)[[paths.offset, paths.offset + len(paths)]]
    digest.update(memoryview(data)[first:last])
    return digest.digest()


def combined_digest(groups: Mapping[int, bytes]) -> str:
    """Combines the digests of the non-empty groups to a hexadecimal number."""
    whole = hashlib.sha256()
    for number, digest in sorted(groups.items()):
        whole.update(number.to_bytes(2, "little"))
        whole.update(digest)
    return whole.hexdigest()
