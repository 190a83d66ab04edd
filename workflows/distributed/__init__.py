"""Flows on a server: the consumers of a workflow's two queues, and what they share."""
