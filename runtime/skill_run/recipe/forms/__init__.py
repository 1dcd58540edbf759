"""The output forms of a generated setup."""
