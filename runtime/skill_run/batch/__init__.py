"""Look into a training batch: load it safely, recognise its path, check its boundaries, preview context parallelism."""
