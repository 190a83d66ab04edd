"""The benchmarks: our side, its peers and the floor, measured in turns on one server.

`python -m benchmarks --help` tells how to run them. Not here: tests. Nothing in this package
asserts anything about time.
"""
