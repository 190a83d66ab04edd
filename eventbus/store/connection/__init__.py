"""Connections to the server: they are opened, shared by callers, retried, and given up with a clear error."""
