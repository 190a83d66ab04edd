"""Changes of jobs and queues, as the server keeps them for who watches."""
