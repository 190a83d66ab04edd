"""What a worker counts of the jobs that end in it, and how the server comes to know."""
