"""What optimize and purge share: choosing files, rewriting them bin by bin, committing."""
