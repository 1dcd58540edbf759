"""What `skill-run verify` runs: proof that this installation judges configs as recorded."""
