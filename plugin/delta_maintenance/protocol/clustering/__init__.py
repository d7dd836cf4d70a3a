"""The order of clustered rows: ranks of values, curves over ranks, overlap of files, and tags."""
