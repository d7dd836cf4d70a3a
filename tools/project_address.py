"""Adds the address of the repository to the metadata of a distribution, and to links of the README.

The checkout does not know its address. GitHub states it in GITHUB_SERVER_URL and GITHUB_REPOSITORY;
a distribution that is built without these has no addresses, and its links stay relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?\[[^\]]*\]\(|(?:src|srcset|href)=\")(?!https?:|mailto:|#)([^)\"\s]+)")


class ProjectAddress(MetadataHookInterface):
    """Called by hatchling for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds `readme` and `urls`."""
        text = (Path(self.root) / "README.md").read_text()
        name = os.environ.get("GITHUB_REPOSITORY")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {}
        if name:
            address = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
            tree = f"{address}/blob/v{metadata['version']}"
            metadata["readme"]["text"] = absolute(text, tree)
            metadata["urls"] = {
                "Source": address,
                "Documentation": f"{tree}/docs/index.md",
                "Changelog": f"{tree}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }


def absolute(text: str, tree: str) -> str:
    """Returns Markdown whose relative links lead to files of a tree on GitHub.

    Pictures get `?raw=true`, because the page of a file is no picture.
    """

    def link(match: re.Match[str]) -> str:
        before, path = match.groups()
        shown = before.startswith(("!", "src"))
        return f"{before}{tree}/{path}{'?raw=true' if shown else ''}"

    return _RELATIVE.sub(link, text)
