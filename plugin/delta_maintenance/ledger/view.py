"""The ledger under the names of another system's history of maintenance, for its dashboards."""

from __future__ import annotations

from typing import Literal, get_args

Dialect = Literal["duckdb", "spark"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
_TYPES = {
    "optimize": "COMPACTION",
    "cluster": "CLUSTERING",
    "vacuum": "VACUUM",
    "recompute-stats": "ANALYZE",
}
_METRICS = {
    "COMPACTION": {
        "number_of_compacted_files": "metrics['files_before']",
        "amount_of_data_compacted_bytes": "metrics['bytes_before']",
        "number_of_output_files": "metrics['files_after']",
        "amount_of_output_data_bytes": "metrics['bytes_after']",
    },
    "CLUSTERING": {
        "number_of_removed_files": "metrics['files_before']",
        "number_of_clustered_files": "metrics['files_after']",
        "amount_of_data_removed_bytes": "metrics['bytes_before']",
        "amount_of_clustered_data_bytes": "metrics['bytes_after']",
    },
    "VACUUM": {
        "number_of_deleted_files": "metrics['deleted']",
        "amount_of_data_deleted_bytes": "bytes_deleted",
    },
    "ANALYZE": {
        "amount_of_scanned_bytes": "bytes_read",
        "number_of_scanned_files": "metrics['files_recomputed']",
    },
}
_DONE = ("done", "nothing-to-do")


def operations_history(address: str, dialect: Dialect) -> str:
    """Returns a statement that creates the view `predictive_optimization_operations_history`.

    It has the columns of the system table of that name in Databricks; `usage_quantity` is CPU time
    in seconds. Plans and operations that wait are left out.
    """
    mark = "'" if dialect == "duckdb" else "`"
    quoted = f"{mark}{address.replace(mark, 2 * mark)}{mark}"
    source = f"delta_scan({quoted})" if dialect == "duckdb" else f"delta.{quoted}"
    kinds = " ".join(f"WHEN '{name}' THEN '{kind}'" for name, kind in _TYPES.items())
    other = "upper(replace(operation, '-', '_'))"
    done = ", ".join(f"'{each}'" for each in _DONE)
    # Only names in catalogs have parts, such as uc://main.sales.orders.
    split, size, last = (
        ("string_split(path, '.')", "len", 0)
        if dialect == "duckdb"
        else ("split(path, '[.]')", "size", 1)
    )
    parts = [f"{split}[{size}({split}) - {last + each}]" for each in range(3)]
    return f"""\
CREATE OR REPLACE {"VIEW" if dialect == "duckdb" else "TEMPORARY VIEW"}
  predictive_optimization_operations_history AS
SELECT
  CAST(NULL AS {_text(dialect)}) AS account_id,
  CAST(NULL AS {_text(dialect)}) AS workspace_id,
  started_at AS start_time,
  ended_at AS end_time,
  CAST(NULL AS {_text(dialect)}) AS metastore_name,
  CAST(NULL AS {_text(dialect)}) AS metastore_id,
  CASE WHEN {size}({split}) >= 3 THEN {parts[2]} END AS catalog_name,
  CASE WHEN {size}({split}) >= 2 THEN {parts[1]} END AS schema_name,
  table_id,
  coalesce({parts[0]}, table_name) AS table_name,
  CASE operation {kinds} ELSE {other} END AS operation_type,
  row_id AS operation_id,
  CASE WHEN outcome IN ({done}) THEN 'SUCCESSFUL'
    ELSE concat('FAILED: ', coalesce(error, outcome)) END AS operation_status,
  CASE operation
{_metrics(dialect)}
  END AS operation_metrics,
  'CPU_SECONDS' AS usage_unit,
  CAST(cpu_seconds AS DECIMAL(38, 6)) AS usage_quantity
FROM (
  SELECT *, CASE WHEN table_name LIKE '%://%' THEN split_part(table_name, '://', 2) END AS path
  FROM {source})
WHERE operation IS NOT NULL AND outcome NOT IN ('planned', 'needs-approval')
"""


def _metrics(dialect: Dialect) -> str:
    text = _text(dialect)
    lines = []
    for name, kind in _TYPES.items():
        pairs = _METRICS[kind].items()
        if dialect == "duckdb":
            items = ", ".join(f"'{key}': CAST({value} AS {text})" for key, value in pairs)
            made = f"MAP {{{items}}}"
        else:
            items = ", ".join(f"'{key}', CAST({value} AS {text})" for key, value in pairs)
            made = f"map({items})"
        lines.append(f"    WHEN '{name}' THEN {made}")
    return "\n".join(lines)


def _text(dialect: Dialect) -> str:
    return "VARCHAR" if dialect == "duckdb" else "STRING"
