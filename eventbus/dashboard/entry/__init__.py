"""The way in: whose request it is, from where it comes, and what stands on each answer. Nothing here reads a
job.
"""
