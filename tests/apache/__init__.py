"""Apache's own software on our bookies, and our brokers on Apache's: a matrix of what works.

    make apache                     everything; docs/compatibility.md is written from it with PAGE=1
    make apache ONLY=shell,move     some parts
    make apache SHORT=1             fewer messages, fewer rounds
    python -m tests.apache --help

Each part has a ZooKeeper and bookies of its own, and says in rows what it tried: whose client, in
which mode, what was done, whether it works. A row that is known not to work says why, and is an
error when it works after all.

`matrix` holds the rows, `page` writes them into docs/compatibility.md, `grounds` is the
cluster a part plays on, and `parts` names the parts, each of which is a module of its own:
`conversations` is what `tests/interop` asks of both kinds of bookies; `shell` (which asks
`questions`) and `auto_recovery` are Apache's tools over ours, with `shells` to run the one and
`replicas` to look at what they leave; `read_only` is a bookie that takes no more; `pulsar` and
`distributedlog` are those two on our bookies (`pulsar_broker` starts and asks the one).

Needs a JDK and Maven, which fetches what is missing from Maven Central once.
"""
