"""Rewrite Python config scripts for another release with libcst, which keeps formatting and comments."""
