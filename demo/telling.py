"""The output of the demo on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

console = Console(highlight=False)


@contextmanager
def timed(text: str) -> Iterator[None]:
    """Tells `text` at the end, with the seconds that it took."""
    began = time.monotonic()
    yield
    console.print(f"   [dim]{text.format(seconds=time.monotonic() - began)}[/]")
