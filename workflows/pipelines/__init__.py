"""Pipelines: steps that share one merged result, as a builder of workflows."""
