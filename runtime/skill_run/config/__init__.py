"""Read any form of training config into one Config, and write it back in its own form."""
