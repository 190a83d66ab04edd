"""What the server knows of all queues and all workers, and what is done to many jobs at once, for people who
look.
"""
