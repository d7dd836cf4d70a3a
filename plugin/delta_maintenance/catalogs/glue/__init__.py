"""AWS Glue Data Catalog, through botocore."""
