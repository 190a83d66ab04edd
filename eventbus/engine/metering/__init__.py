"""The metrics of workers: what their jobs do, and how long the queues are."""
