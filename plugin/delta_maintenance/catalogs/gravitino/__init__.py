"""Apache Gravitino: tables of generic lakehouse catalogs."""
