"""What people must not see of payloads and results: the mark on a field, where the marks are, and hiding what
they mark.
"""
