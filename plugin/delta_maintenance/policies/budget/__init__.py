"""What is worth doing first on many tables, within a budget."""
