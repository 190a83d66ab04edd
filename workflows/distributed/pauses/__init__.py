"""Steps of distributed graphs that only wait: for a time, or for a signal."""
