"""Looking for damage: beside the running bookie, at its start, and in the folders of a stopped one.

`scrub` reads every log again and again, slowly. `consistency` compares index, logs and ledger state
at a start. `folder_check` does all of that, and the journals, for the folders of a stopped bookie.

Promises: whatever is on disk is looked at in the end; a finding is named once, and cleared when it
is gone. Nothing here changes a file. Relies on the formats and on the walk over a log; findings go
to the registry in `disk/damage.py`. On a crash the scrub begins anew. Others use `Scrubber`,
`check_at_start` and `check_folders`.
"""
