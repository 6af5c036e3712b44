"""Jobs over whole topics and ledgers, run by Spark: `octavo pipeline JOB`, docs/pipeline/.

One module per job. A job reads directly from the bookies and the metadata store; it asks a broker
only where these are. To recover from a crash, run the job again: `offload` continues where it
stopped, and the other jobs change no existing data.
"""
