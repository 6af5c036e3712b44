"""Consumer groups: their members, sessions and generations, and which member has which partition.

`group` is a group's state machine, pure; `coordinator` drives the groups of this broker.

Promises: a member gets a partition only when no other live member holds it. Each change of members
or wishes raises the generation, by which a partition's owner fences former members.

Relies on the members: nothing is stored. After a crash members call another broker and say what
they hold.

Others use `Groups`, `coordinator_of` and `Membership`.
"""
