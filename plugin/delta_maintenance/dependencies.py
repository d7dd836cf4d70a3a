"""The oldest supported versions of packages, which pip enforces and clusters may not have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

OLDEST = {
    "fsspec": "2024.6",
    "numpy": "1.26",
    "pyarrow": "21",
    "pydantic": "2.7",
    "pyroaring": "1.1",
}
"""As in pyproject.toml. Clusters have versions of their own of these packages."""
_PACKAGES, _INFO = "-packages", ".dist-info"


def require_versions(oldest: Mapping[str, str]) -> None:
    """Raises `ImportError` for a package of this Python that is older. A package that is not found
    is not examined.

    Reads the names in the folders of packages, which takes a millisecond; importing the packages,
    or `importlib.metadata`, would slow down every command and every parsing of a Dag.
    """
    known: dict[str, str] = {}
    for folder in sys.path:
        if folder.endswith(_PACKAGES):
            with suppress(OSError):
                for entry in os.listdir(folder):
                    if entry.endswith(_INFO):
                        name, _, version = entry.removesuffix(_INFO).partition("-")
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
