"""What the figures say: the facts of the machine, the goals, the tables and the page."""
