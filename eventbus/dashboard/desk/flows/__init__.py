"""Flows: their lists, one flow with its steps, its graph, and the actions on it.

`Dashboard(flows=...)` gives them (`flow_source`); without it there are none, and their pages and routes
answer 404.
"""
