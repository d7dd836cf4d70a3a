"""Progress reports of long work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the work, the completed amount, and the total amount if known."""
