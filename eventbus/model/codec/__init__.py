"""Payloads and results: from Python values to JSON and back."""
