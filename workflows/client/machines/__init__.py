"""State machines as their callers see them: reports, and triggers."""
