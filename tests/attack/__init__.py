"""Unruly clients against a real cluster: `make attack`, and a short form in every test run.
While each attempt of `attempts_*.py` runs, a canary client publishes. Its messages are there
once and in order, at half its rate or better; no process dies or exceeds its memory; no bad
input is answered 5xx; a few seconds later everything is as before."""
