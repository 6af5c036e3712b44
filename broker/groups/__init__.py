"""Consumer groups: their members, sessions and generations, and which member has which partition.

`group` is the state machine of a group, with a table of its states, and decides which member gets
which partition, pure. `coordinator` is the thin driver: the groups that this
broker keeps, the members that wait, and which broker is the coordinator of a group. Members call it
through the operations `Heartbeat`, `LeaveGroup` and `DescribeGroup`.

Promises: a partition is given to a member only when no other member that lives holds it, and each
change of members or their wishes has a higher generation, by which a partition's owner fences
former members (`subscriptions/member_fence.py`). Relies on the members: nothing is stored. After a
crash another broker coordinates the group; its members call again and say what they hold. Others
use `Groups`, `coordinator_of` and `Membership`.
"""
