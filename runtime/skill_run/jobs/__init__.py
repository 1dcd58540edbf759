"""Jobs: their plans, their store, the engines that run them, and what went wrong when one fails."""
