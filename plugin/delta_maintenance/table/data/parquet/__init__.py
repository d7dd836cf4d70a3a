"""Raw Parquet: Thrift, footers, pages and guarded reading. Knows nothing of Delta tables."""
