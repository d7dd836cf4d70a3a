"""S3 and stores that speak its API."""
