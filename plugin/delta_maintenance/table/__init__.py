"""A Delta table in a store: log segments, snapshots, checkpoints and commits."""
