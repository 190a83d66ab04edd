"""Handlers that run in processes of their own: how they are found there, what travels, what runs."""
