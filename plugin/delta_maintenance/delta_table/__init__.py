"""The front door for people: a table as an object, with one method for each operation."""
