"""What is counted of queues over time: histograms, and for how long they are kept."""
