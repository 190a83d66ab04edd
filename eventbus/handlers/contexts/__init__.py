"""What stands beside the contexts of handlers: the tools of any attempt, and the context of one in a
process.
"""
