"""The parts of a context: what it needs of its flow, what the library reads of it, and the returns of its
calls.
"""
