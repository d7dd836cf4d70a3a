"""The oldest supported versions of packages, which pip enforces and clusters may not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

OLDEST = {
    "fsspec": "2024.6",
    "numpy": "1.26",
    "pyarrow": "24",
    "pydantic": "2.11",
    "pyroaring": "1.1",
}
"""As in pyproject.toml. Clusters have versions of their own of these packages."""
_INFO = (".dist-info", ".egg-info")


def require_versions(oldest: Mapping[str, str]) -> None:
    """Raises `ImportError` for a package of this Python that is older. A package that is not found
    is not examined.

    Reads the names in the folders of `sys.path`, which takes a millisecond; importing the packages,
    or `importlib.metadata`, would slow down every command and every parsing of a Dag.
    """
    known: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                stem, kind = os.path.splitext(entry)
                if kind in _INFO and "-" in stem:
                    name, version = stem.split("-")[:2]
                    known.setdefault(name, version)
    for name, version in oldest.items():
        if numbers_of(known.get(name, version)) < numbers_of(version):
            package = name.replace("_", "-")
            raise ImportError(
                f"delta-maintenance needs {package} {version} or newer, and this Python has "
                f"{known[name]}: pip install '{package}>={version}'"
            )


def numbers_of(version: str) -> list[int]:
    """The first two numbers of a version, to compare it."""
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]
