"""Values that are read when they are first asked for."""

from __future__ import annotations

import threading

from delta_maintenance.lazy import read_once


class File:
    """Reads nothing, and counts how often."""

    def __init__(self, meeting: threading.Barrier | None = None) -> None:
        self.meeting = meeting
        self.reads = 0

    @read_once
    def content(self) -> int:
        """The content."""
        self.reads += 1
        if self.meeting is not None:
            self.meeting.wait(timeout=120)
        return self.reads


def test_a_value_is_read_once_for_each_instance() -> None:
    one, other = File(), File()
    assert [one.content, one.content, other.content] == [1, 1, 1]
    assert (one.reads, other.reads) == (1, 1)
    assert File.content.__doc__ == "The content."


def test_two_instances_are_read_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    files = [File(meeting), File(meeting)]
    threads = [threading.Thread(target=lambda file=file: file.content) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.reads for file in files] == [1, 1]
    assert not meeting.broken
