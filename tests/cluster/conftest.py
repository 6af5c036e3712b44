from tests.support.cluster import cluster as cluster

plain_cluster = cluster
