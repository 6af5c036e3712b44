"""Consumer groups: their members, sessions and generations, and which member has which partition.

`group` is the state machine of a group and decides which member gets which partition, pure.
`coordinator` is the driver: the groups of this broker, calls that wait, and which broker is the
coordinator of a group. Members call it through the operations `Heartbeat`, `LeaveGroup` and
`DescribeGroup`.

Promises: a member gets a partition only when no other live member holds it. Each change of members
or their wishes raises the generation, by which a partition's owner fences former members
(`subscriptions/member_fence.py`). Relies on the members: nothing is stored. After a crash another
broker coordinates the group; members call it and say what they hold. Others use `Groups`,
`coordinator_of` and `Membership`.
"""
