"""What a bookie counts, for Prometheus.

`bookie` has the registry and the metrics of requests, reads and damage; `write` those of journals,
flushes and compaction. Touched once for each chunk or group, never for each entry.

Promises: one registry for each bookie, so that several can live in one process; a gauge costs
nothing until it is scraped. Relies on what the other rooms count anyway. All of it begins at zero
after a crash. Others use `BookieMetrics`; every metric has a row in docs/operations.md.
"""
