"""The health of tables: asset checks, and the metadata that Dagster shows."""
