"""Pythons of other versions, for the parts of `make nightly`.

A Python is looked for on the machine, then asked of uv, which downloads it, and then taken from the
Go module `go-embed-python`, where Go's module proxy can be reached and downloads of uv cannot.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from go_modules import NoModule, folder_of

MODULE = "github.com/kluctl/go-embed-python"
EMBEDDED = {
    "3.11": "v0.0.0-3.11.11-20241219-1",
    "3.12": "v0.0.0-3.12.3-20240415-1",
    "3.13": "v0.0.0-3.13.1-20241219-1",
    "3.14": "v0.0.0-3.14.6-20260610-1",
}
"""The newest version of the module for each Python that the public proxy keeps."""
_DATA = Path("python", "internal", "data", "linux-amd64")
# Mode bits of Go.
_FOLDER, _LINK, _PERMISSIONS = 1 << 31, 1 << 27, 0o777


def find(version: str, *, uv: str, folder: Path) -> Path | None:
    """Returns the program of a Python such as `3.13`; None if there is none to be had.

    `folder` keeps unpacked ones.
    """
    unpacked = folder / version / "bin" / "python3"
    if (found := _known(version, uv)) is not None:
        return found
    if unpacked.exists():
        return unpacked
    install = (uv, "python", "install", "--quiet", "--no-bin", version)
    if subprocess.run(install, capture_output=True).returncode == 0:
        return _known(version, uv)
    try:
        unpack(embedded(version), folder / version)
    except (KeyError, NoModule):
        return None
    return unpacked


def _known(version: str, uv: str) -> Path | None:
    """The Python that uv finds on the machine."""
    command = (uv, "python", "find", "--quiet", version)
    found = subprocess.run(command, capture_output=True, text=True)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def embedded(version: str) -> Path:
    """Returns the folder with the files of a Python in its Go module. Raises NoModule."""
    return folder_of(f"{MODULE}@{EMBEDDED[version]}") / _DATA


def unpack(data: Path, place: Path) -> None:
    """Writes the files that `files.json` in a folder of the module lists."""
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    listed: list[dict[str, Any]] = json.loads((data / "files.json").read_text())["files"]
    for entry in listed:
        path, mode = partial / entry["name"], int(entry["perm"])
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode & _FOLDER:
            path.mkdir(exist_ok=True)
        elif mode & _LINK:
            path.symlink_to(entry["symlink"])
        else:
            packed = data / f"{entry['name']}.gz"
            plain = gzip.decompress(packed.read_bytes()) if packed.exists() else None
            path.write_bytes((data / entry["name"]).read_bytes() if plain is None else plain)
            path.chmod(mode & _PERMISSIONS | 0o200)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
