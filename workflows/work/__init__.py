"""What workers do for flows: the consumers of a workflow's two queues."""
