"""Apache's own software on our bookies, and our brokers on Apache's: a matrix of what works.
`make apache` runs everything and writes docs/compatibility.md; `PAGE=1 make apache
ONLY=shell,move` some parts; `SHORT=1` fewer messages. Each part of `parts` has its own ZooKeeper
and bookies (`grounds`) and reports rows: client, mode, operation, whether it works. A row that
is known not to work has its reason; if it works after all, that is an error. Needs a JDK and
Maven, which fetches missing jars from Maven Central once."""
