"""Undoing flows: what a stopped flow has to undo, and the phase that does it."""
