"""The commands of `eventbus`, and the parts that only one command uses."""
