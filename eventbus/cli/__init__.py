"""The command line: a thin layer over provider, worker and embedded server. Each command has its own file."""
