"""What a worker records beside the outcomes of its jobs: progress, log lines, history, metrics, health."""
