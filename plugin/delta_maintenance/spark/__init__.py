"""The same plans carried out by PySpark; the only importer of pyspark."""
