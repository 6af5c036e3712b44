"""Jobs over whole topics and ledgers, run by Spark: `octavo pipeline JOB`, docs/pipeline/.

One module per job. A job reads straight from the bookies and the metadata store; it needs a broker
only to learn where these are. A job that dies is started again: `offload` goes on where it was, the
others change nothing in the cluster.
"""
