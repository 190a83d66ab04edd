"""Bulk operations: one thing that is done to many jobs, by a process that may be lost at any time."""
