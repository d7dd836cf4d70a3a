"""Imported by Dag files: holds the checkpoint of a table, and records when tasks work on it.

The work on a table lasts as long as its folder contains the file `hold`. Meanwhile, each process
appends the time to `NAME.work-PID` beside the folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from delta_maintenance.operations.checkpoint import operation
from delta_maintenance.table.read import Table

_INTERVAL = 0.1
_apply = operation.apply


def _apply_when_released(table: Table, *arguments: Any, **options: Any) -> Any:
    folder = Path(table.uri.removeprefix("file://"))
    with folder.with_name(f"{folder.name}.work-{os.getpid()}").open("a") as times:
        while True:
            times.write(f"{time.time()}\n")
            times.flush()
            if not (folder / "hold").exists():
                break
            time.sleep(_INTERVAL)
        try:
            return _apply(table, *arguments, **options)
        finally:
            times.write(f"{time.time()}\n")


operation.apply = _apply_when_released
