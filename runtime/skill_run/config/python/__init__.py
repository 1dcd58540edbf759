"""Read Python recipe scripts by their syntax tree: an interpreter of constants and config objects that runs nothing."""
