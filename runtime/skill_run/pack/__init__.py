"""Packed datasets: reading them, checking them, and the packing algorithms."""
