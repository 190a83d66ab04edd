"""The calls of a context, their positions and their records."""
