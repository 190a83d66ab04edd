"""The pages: HTML that the server renders. They read and act at the desk, as the API does, and work without
scripts.
"""
