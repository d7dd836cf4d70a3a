"""HDFS, through the name node's RPC protocol or its REST interface."""
