"""HDFS, through the REST interface of its name node."""
