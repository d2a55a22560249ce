"""A page on this machine that follows a run from its files."""
