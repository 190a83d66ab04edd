"""Watching: what happens to jobs and queues, over the wire."""
