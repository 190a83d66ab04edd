"""Batch handlers: gathering claimed jobs, calling the handler for many of them, and giving each job its own
outcome.
"""
