"""The desk: what pages and API ask and order. Each subject has a file; all rights are asked here, once for
both.
"""
