"""The part that knows jobs and queues, and no event vocabulary."""
