"""Adds as they came off the wire: cut into runs, and not taken apart any further.

`add_run` has the run: consecutive entries of one ledger with the frames as they arrived. `chunk`
cuts what one socket read delivered into runs, and checks lengths, ids and, where it is known, each
entry's digest. Both are pure.

Promises: a run that `split_adds` gives is well formed, and its frames are the bytes that were sent.
Relies on the frames of `protocol`. Holds nothing, so there is nothing to lose on a crash. Others
use `AddRun` (everywhere) and `split_adds` (wire, and checks of what is on disk).
"""
