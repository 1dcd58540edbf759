"""Find, load and check the bundle: cards, skills and rules."""
