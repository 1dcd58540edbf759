"""Files that are copied into a job's folder: they need the training environment only, and import one another."""
