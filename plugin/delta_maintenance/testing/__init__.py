"""The contract of stores, for authors of stores."""
