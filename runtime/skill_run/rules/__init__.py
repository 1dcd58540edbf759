"""Evaluate the rules of the bundle on a Config: CEL environment, derived values, findings, fixes."""
