"""The records of flows in the server: their formats, the ids and names, and the reports made from them."""
