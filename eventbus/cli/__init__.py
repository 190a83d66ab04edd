"""The command line, thin over provider, worker and the embedded server: one command a file."""
