"""The findings of `fsck`, from its table of findings."""

from __future__ import annotations

from delta_maintenance.operations.fsck.findings import KINDS
from docs_site.markdown import code, sentence, table


def kinds(_: str) -> str:
    """Every kind of finding with its severity and its usual remedy."""
    rows = [(code(name), kind.severity, sentence(kind.remedy)) for name, kind in KINDS.items()]
    return table(("kind", "severity", "usual remedy"), rows)
