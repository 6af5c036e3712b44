"""Unruly clients against a real cluster: `make attack`, and a short form in every test run.

Each attempt in `attempts_*.py` attacks a standalone cluster of real processes, while a well-behaved
client publishes to a canary topic (canary.py). During and after each attempt: the canary's messages
are there once and in order; it publishes at half its rate or better; each process is alive, was
never restarted, and stays within its memory bound; no bad input was answered 5xx; and a few seconds
later everything is as it was before.
"""
