"""The demos: all flights of 2013 through a cluster that loses nodes, fencing, and Spark."""
