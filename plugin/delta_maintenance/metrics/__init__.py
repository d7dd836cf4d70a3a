"""Metrics of tables and of runs: what there is, its values, and ways out of the process."""
