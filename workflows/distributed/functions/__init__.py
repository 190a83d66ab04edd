"""Durable functions in a worker: their consumer, and one activation of a flow."""
