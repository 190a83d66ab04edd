"""The handlers: how they are registered and called, their contexts, and the worker of a provider."""
