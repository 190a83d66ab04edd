"""The fleet: the server and the workers, as one caller may see them."""
