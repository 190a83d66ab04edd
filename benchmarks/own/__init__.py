"""Rows about our side alone: how its cost grows, what a worker and a kept job cost, how it starts."""
