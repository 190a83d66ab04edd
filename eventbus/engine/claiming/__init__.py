"""Claiming: which jobs a worker takes, and how it settles them."""
