#!/bin/bash
# Writes zoo.cfg from the environment and runs the server; see the Dockerfile beside.
set -euo pipefail
{
    printf '%s\n' dataDir=/data dataLogDir=/datalog "tickTime=${ZOO_TICK_TIME:-2000}" \
        "initLimit=${ZOO_INIT_LIMIT:-5}" "syncLimit=${ZOO_SYNC_LIMIT:-2}" \
        autopurge.snapRetainCount=3 autopurge.purgeInterval=1 admin.enableServer=false
    for line in ${ZOO_CFG_EXTRA:-} ${ZOO_SERVERS:-server.1=localhost:2888:3888;2181}; do
        echo "$line"
    done
} >/conf/zoo.cfg
[ -e /data/myid ] || echo "${ZOO_MY_ID:-1}" >/data/myid
exec java -Xmx256m -Dzookeeper.jmx.log4j.disable=true -cp /usr/share/java/zookeeper.jar \
    org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
