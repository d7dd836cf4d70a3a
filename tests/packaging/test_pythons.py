"""Pythons that come in a Go module, file by file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

FOLDER, LINK = 1 << 31, 1 << 27
ENTRIES = [
    {"name": "bin", "perm": FOLDER | 0o755},
    {"name": "bin/python3", "perm": LINK, "symlink": "python3.13"},
    {"name": "bin/python3.13", "perm": 0o555},
    {"name": "lib/python3.13/os.py", "perm": 0o444},
]


@pytest.fixture
def pythons(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "tools")
    import pythons

    module: ModuleType = pythons
    return module


def test_files_are_unpacked_with_their_modes_and_links(pythons: ModuleType, tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "3.13"
    (data / "bin").mkdir(parents=True)
    (data / "lib/python3.13").mkdir(parents=True)
    (data / "files.json").write_text(json.dumps({"files": ENTRIES}))
    (data / "bin/python3.13.gz").write_bytes(gzip.compress(b"program"))
    (data / "lib/python3.13/os.py").write_bytes(b"module")
    # Of a run that was interrupted.
    (tmp_path / "3.13.partial/old").mkdir(parents=True)
    pythons.unpack(data, place)
    assert (place / "bin/python3").read_bytes() == b"program"
    assert os.readlink(place / "bin/python3") == "python3.13"
    assert (place / "bin/python3.13").stat().st_mode & 0o777 == 0o755
    assert (place / "lib/python3.13/os.py").read_bytes() == b"module"
    assert (place / "lib/python3.13/os.py").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.13", "data"]


@pytest.mark.process
def test_a_python_is_unpacked_where_uv_has_none_and_the_module_can_be_had(
    pythons: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import go_modules

    monkeypatch.setattr(pythons, "unpack", lambda data, place: place.mkdir())
    monkeypatch.setattr(pythons, "folder_of", lambda module: tmp_path)
    found = pythons.find("3.13", uv="false", folder=tmp_path)
    assert found == tmp_path / "3.13/bin/python3" and found.parents[1].is_dir()
    assert pythons.find("3.99", uv="false", folder=tmp_path) is None

    def absent(module: str) -> Path:
        raise go_modules.NoModule("the program go")

    monkeypatch.setattr(pythons, "folder_of", absent)
    assert pythons.find("3.12", uv="false", folder=tmp_path) is None
