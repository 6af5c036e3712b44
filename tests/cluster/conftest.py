from tests.support.cluster import cluster as cluster
