"""Running steps, rollbacks and hooks, in the same way for distributed and inline flows."""
