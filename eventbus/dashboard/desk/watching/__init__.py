"""Watching: what happens to jobs and queues, as one caller may see it."""
