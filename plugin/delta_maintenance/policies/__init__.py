"""What tables need and when: the policy document, what is due by it, and carrying that out."""
