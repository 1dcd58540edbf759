"""What each Megatron-Bridge release looks like, as data: fields, defaults, renames, recipes and import paths."""
