"""What maintenance costs by the number of files of a table, ours and that of peers."""
