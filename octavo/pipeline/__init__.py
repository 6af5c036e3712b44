"""Jobs over whole topics and ledgers, run by Spark: `octavo pipeline JOB`, docs/pipeline/.

They read directly from bookies and the metadata store. After a crash, run the job again.
"""
