"""The demonstrations: all flights of 2013 through a cluster that loses nodes, and fencing."""
