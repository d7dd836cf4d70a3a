"""Hive Metastore, by its Thrift interface."""
