"""DIR/cluster.json: the processes of a standalone cluster, for tools, demos and the next start.

Replaced by rename at every change of a child. After kill −9 of all it is stale: see `alive`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from octavo.protocol.codes import OctavoError, Scope

FILE_NAME = "cluster.json"


class NoCluster(OctavoError):
    name = "no-cluster"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """`address` is a bookie's `host:port` or a broker's URL."""

    name: str
    kind: str
    pid: int = 0
    state: str = "starting"
    """`starting`, `running`, `dead` or `stopped`."""
    address: str = ""
    port: int = 0
    admin_port: int = 0
    """A bookie's port for health, metrics and `octavo bookie … --url`; 0 for a broker."""
    log: str = ""
    restarts: int = 0
    read_only_because: str = ""
    """Why a bookie took no adds at its start; empty if it took them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    folder: str
    metadata_url: str
    supervisor_pid: int = 0
    ready: bool = False
    shown: Sequence[str] = field(default_factory=tuple)
    """With TLS: the file of its CA; with mutual TLS also a client's certificate and key."""
    token_file: str = ""
    """If it is secured: the file of its administrator's token, readable by this user only."""
    members: Sequence[Member] = field(default_factory=tuple)

    def of_kind(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)

    @property
    def urls(self) -> list[str]:
        return [member.address for member in self.of_kind("broker") if member.address]

    def with_member(self, member: Member) -> ClusterFile:
        kept = {known.name: known for known in self.members}
        kept[member.name] = member
        return replace(self, members=tuple(kept.values()))

    def write(self) -> None:
        path = Path(self.folder) / FILE_NAME
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        draft.rename(path)


def read_cluster(folder: Path) -> ClusterFile:
    path = folder / FILE_NAME
    try:
        found = json.loads(path.read_text())
        members = tuple(Member(**member) for member in found.pop("members"))
        shown = tuple(found.pop("shown", ()))
        return ClusterFile(members=members, shown=shown, **found)
    except FileNotFoundError:
        raise NoCluster(
            f"{folder} holds no standalone cluster; start one with "
            f"`octavo standalone --data {folder}`"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise NoCluster(f"{path} cannot be read: {error}") from error


def alive(pid: int) -> bool:
    """Whether a process `pid` exists; by now it may be another process."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
