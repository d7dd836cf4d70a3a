"""A log store for Delta Spark whose commits on S3 are conditional puts.

Its source in Java is beside this module, and its class in the jar. Every commit that it creates has
the user metadata `LOG_STORE_MARK` (`table.commit.other_writers`).
"""

from __future__ import annotations

from pathlib import Path

JAR = Path(__file__).with_name("delta-maintenance-log-store.jar")
"""The jar, for `spark.jars` or `--jars`."""
SETTINGS = {
    f"spark.delta.logStore.{scheme}.impl": "delta_maintenance.ConditionalPutLogStore"
    for scheme in ("s3a", "s3")
}
"""The configuration of a Spark session that commits with it, whatever the scheme of its tables."""
