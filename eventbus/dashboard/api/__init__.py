"""The management API: HTTP and JSON on top of the desk. Its routes and its description come from one
table.
"""
