"""Reads the records in the server, and acts on them from outside: for the command line and dashboards."""
