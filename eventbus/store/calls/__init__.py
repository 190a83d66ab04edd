"""The calls of the store, by their subject: what a script or command is given, and what its answer means."""
