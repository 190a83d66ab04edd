"""Flows that run in this process, without a server."""
