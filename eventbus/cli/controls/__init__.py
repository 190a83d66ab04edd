"""The commands by which an operator controls queues."""
