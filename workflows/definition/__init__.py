"""The definition of workflows: steps, their order, hooks, and the checks of their parameters and types."""
