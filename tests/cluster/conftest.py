from tests.support.cluster import cluster as cluster

plain_cluster = cluster
"""For the tests of a file that has a fixture `cluster` of its own."""
