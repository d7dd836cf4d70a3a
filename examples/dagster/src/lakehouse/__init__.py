"""An example: a Dagster project whose Delta tables are looked after."""
