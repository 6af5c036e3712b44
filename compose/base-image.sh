#!/usr/bin/env bash
# The images that a machine without an image registry needs, made from the Debian archive alone:
#
#   compose/base-image.sh                  # octavo-base:local: Debian 12 with Python 3.11
#   compose/base-image.sh --zookeeper      # and octavo-zookeeper:local, Debian's ZooKeeper on it
#   compose/base-image.sh --prometheus     # and octavo-prometheus:local, for the profile `observe`
#
#   export BASE_IMAGE=octavo-base:local ZOOKEEPER_IMAGE=octavo-zookeeper:local
#   docker-compose -f compose/compose.yaml up --build -d
#
# Needs root, a running Docker engine and debootstrap. Nothing is changed outside of a temporary
# folder and the engine. Whoever can pull images needs none of this.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
base=octavo-base:local

[ "$(id -u)" = 0 ] || { echo 'base-image.sh: debootstrap needs root' >&2; exit 1; }
for tool in docker debootstrap; do
    command -v $tool >/dev/null || {
        echo "base-image.sh: no $tool: apt-get install docker.io debootstrap" >&2; exit 1; }
done
docker version >/dev/null || { echo 'base-image.sh: no engine answers; start dockerd' >&2; exit 1; }

if ! docker image inspect $base >/dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'umount "$root" 2>/dev/null || true; rm -rf "$root"' EXIT
    # In memory where that is allowed: dpkg syncs every file, and a busy disk takes minutes for it.
    mount -t tmpfs -o size=1g,mode=755 tmpfs "$root" 2>/dev/null || true
    debootstrap --variant=minbase --include=python3-minimal,python3-venv,ca-certificates \
        $suite "$root" "$mirror"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
        "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
    # As in the official images: an image that is half built after a power failure is built again.
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/image"
    tar -C "$root" --one-file-system --exclude=./dev/* -c . |
        docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' - $base
fi
if [ "${1:-}" = --zookeeper ]; then
    docker build --tag octavo-zookeeper:local --build-arg BASE_IMAGE=$base "$here/zookeeper"
fi
if [ "${1:-}" = --prometheus ]; then
    # As the official image is started: settings and data where compose.yaml mounts them.
    docker build --tag octavo-prometheus:local - <<EOF
FROM $base
RUN apt-get update -qq \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends prometheus \\
        >/dev/null \\
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \\
    && install -d -o prometheus -g prometheus /prometheus
USER prometheus
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", \\
    "--storage.tsdb.path=/prometheus"]
EOF
fi
docker image ls --filter reference='octavo-*:local'
