"""The parts that optimize and purge share: choosing files, rewriting bins, committing them."""
