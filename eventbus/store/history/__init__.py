"""The history of queues in the store."""
