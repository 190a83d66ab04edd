"""`eventbus dashboard`: the dashboard on a port of its own, and the demo that it shows."""
