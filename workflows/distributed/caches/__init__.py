"""What a worker keeps of flows, so that it need not ask the server again."""
