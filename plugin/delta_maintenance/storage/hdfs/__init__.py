"""HDFS, through the name node's own protocol or its REST interface."""
