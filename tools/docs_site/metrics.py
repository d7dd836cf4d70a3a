"""The metrics, from their definitions."""

from __future__ import annotations

from delta_maintenance.metrics.definitions import OF_RUNS, OF_TABLES
from docs_site.markdown import code, sentence, table


def of(subject: str) -> str:
    """The metrics of `tables` or of `runs`, each with its kind, its labels and its meaning."""
    metrics = {"tables": OF_TABLES, "runs": OF_RUNS}[subject]
    rows = [
        (
            code(m.in_prometheus if subject == "tables" else m.in_otel),
            *(() if subject == "tables" else (m.kind,)),
            ", ".join(map(code, m.labels)),
            sentence(m.help),
        )
        for m in metrics
    ]
    kinds = () if subject == "tables" else ("kind",)
    return table(("metric", *kinds, "labels", "meaning"), rows)
