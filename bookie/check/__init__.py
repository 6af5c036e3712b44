"""Checks for damage: of a running bookie, at its start, and in the folders of a stopped bookie.

`scrub` reads every log again and again, slowly. `consistency` compares index, logs and ledger state
at a start. `folder_check` does all of that, and the journals, for the folders of a stopped bookie.

Promises: the scrub reads everything on disk in turn; a finding is reported once, and cleared when
it is gone. No check changes a file. Relies on the formats and on the walk over a log; findings go
to the registry in `disk/damage.py`. On a crash the scrub starts over. Others use `Scrubber`,
`check_at_start` and `check_folders`.
"""
