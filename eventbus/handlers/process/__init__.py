"""Handlers with `pool="process"`: how the other process finds them, the messages in between, and its
program.
"""
