"""What a run starts: the server, the programs of each side and their environments."""
