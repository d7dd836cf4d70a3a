"""Reads the non-file actions of a long commit without keeping the file actions.

A commit can contain a file action for every file of a table. If only its other actions are needed,
it is read piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delta_maintenance.errors import OversizedFileError
from delta_maintenance.protocol.ndjson.split import CommitText, FileBlock, split


def split_pieces(name: str, pieces: Iterable[bytes], *, longest: int) -> CommitText:
    """Like `split.split` of the concatenated pieces, but without the file action lines.

    Holds one piece, or the longest line if that is longer; `OversizedFileError` for a line of more
    than `longest` bytes.
    """
    others: list[tuple[int, bytes]] = []
    whole: FileBlock | None = FileBlock(0, 0, ())
    start, first_line, empty = 0, 1, True
    for text in _whole_lines(name, pieces, longest):
        if not text.isspace():
            piece = split(name, text, first_line=first_line)
            others += piece.other_lines
            whole = _joined(whole, piece.block, start)
            empty = False
        start += len(text)
        first_line += text.count(b"\n")
    if empty:
        split(name, b"")
    return CommitText(name, (), (), tuple(others), whole)


def _joined(whole: FileBlock | None, block: FileBlock | None, start: int) -> FileBlock | None:
    """Joins the block so far with the next one, `start` bytes further on, if they are adjacent."""
    if whole is None or block is None:
        return None
    if not block.runs:
        return whole
    block = block.moved(start)
    if not whole.runs:
        return block
    if whole.end != block.start:
        return None
    return FileBlock(whole.start, block.end, whole.runs + block.runs)


def _whole_lines(name: str, pieces: Iterable[bytes], longest: int) -> Iterator[bytes]:
    rest: list[bytes] = []
    size = 0
    for piece in pieces:
        head, newline, tail = piece.rpartition(b"\n")
        end = piece.find(b"\n") if newline else len(piece)
        if max(size + end, len(tail)) > longest:
            raise OversizedFileError(f"a line has more than {longest} bytes", file=name)
        if newline:
            lines = b"".join([*rest, head, newline])
            # Released before the caller parses the lines, which may be one long line.
            rest, size = [], 0
            yield lines
            del lines
        rest.append(tail)
        size += len(tail)
    if size:
        yield b"".join(rest)
