"""What all operations share."""
