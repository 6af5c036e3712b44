"""What a namespace and a topic say about messages: how long, how many, how fast, how safe.

`rules` says what there is, what holds where both speak, and what is wrong, pure. `ages` knows how
long messages have been stored, pure. `backlog` judges what a subscription has not acked, pure.

Promises: a topic's own word goes before its namespace's; what nobody says has a default that
changes nothing. Relies on drivers in `partition` and `cluster`, who do what is decided here.
After a crash the records tell it all again, but for ages, which the state ledger has. Others use
`check_policies`, `effective`, `resolved` and `Ages`.
"""
