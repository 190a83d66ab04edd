"""Flows on a server: the consumers of a workflow's two queues, and the calls of clients about flows."""
