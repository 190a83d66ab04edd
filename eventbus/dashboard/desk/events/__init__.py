"""Events: what may be emitted, and how its payload looks."""
