"""Jobs over whole topics and ledgers, run by Spark: `octavo pipeline JOB`, docs/pipeline/.

One module per job. A job reads straight from the bookies and the metadata store; it needs a broker
only to learn where these are. No job here changes anything in the cluster, so a job that dies is
started again.
"""
