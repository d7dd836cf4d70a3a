"""File statistics, as JSON and as structs."""
