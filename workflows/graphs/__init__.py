"""Graphs of workflows: what a definition consists of, and where a flow of it is. One model of nodes and edges
for all of them.
"""
