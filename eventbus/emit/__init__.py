"""The emitter's side of the event bus: emissions become jobs in the server, and outcomes come back."""
