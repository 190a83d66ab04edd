"""Helpers for event loops, threads and processes, without any knowledge of jobs."""
