"""Durable functions: their definition, and the run that repeats what was recorded and goes on behind it."""
