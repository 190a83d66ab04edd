"""Hooks for failed jobs: what they are told, and when they are called."""
