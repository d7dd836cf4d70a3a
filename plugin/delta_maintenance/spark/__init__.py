"""The Spark engine: applies the same plans with PySpark. The only importer of PySpark."""
