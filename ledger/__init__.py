"""The ledger client: bookies made one log. Quorum writer, reader, recovery, placement."""
