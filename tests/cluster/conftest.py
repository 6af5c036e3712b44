from tests.support.cluster import cluster as cluster

plain_cluster = cluster
"""The shared fixture, for files with their own fixture `cluster`."""
