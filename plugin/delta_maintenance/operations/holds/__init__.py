"""What must stay: kept versions, readers and clones, and the versions and files that they hold."""
