"""Apache's own software on our bookies, and our brokers on Apache's: a matrix of what works.

    make apache                     everything; docs/compatibility.md is written from it with PAGE=1
    make apache ONLY=shell,move     some parts
    make apache SHORT=1             fewer messages, fewer rounds
    python -m tests.apache --help

Each part has its own ZooKeeper and bookies, and reports rows: the client, the mode, the operation,
whether it works. A row that is known not to work has its reason; if it works after all, that is an
error.

`matrix` holds the rows, `page` writes them into docs/compatibility.md, `grounds` is the cluster of
a part, and `parts` names the parts, each of which is a module: `conversations` is what
`tests/interop` asks of both kinds of bookies; `shell` (which asks `questions`) and `auto_recovery`
are Apache's tools over ours, with `shells` to run the shell and `replicas` to check the result;
`read_only` is a bookie that takes no more; `pulsar` and `distributedlog` are those systems on our
bookies (`pulsar_broker` starts Pulsar's broker and calls it).

Needs a JDK and Maven, which fetches missing jars from Maven Central once.
"""
