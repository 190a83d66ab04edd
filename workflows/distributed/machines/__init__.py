"""State machines in workers."""
