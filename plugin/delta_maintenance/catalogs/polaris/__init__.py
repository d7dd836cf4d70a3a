"""Apache Polaris: generic tables of catalogs."""
