"""The engine: jobs, queues and workers. It knows no events, handlers or workflows."""
