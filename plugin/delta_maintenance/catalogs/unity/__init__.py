"""Unity Catalog: the open-source server and Databricks."""
