"""All file systems of fsspec, for reading."""
