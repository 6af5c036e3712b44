"""DIR/cluster.json: what runs in a standalone folder, for tools, demos and the next start.

Written whole (temporary file, then rename) at every change of a child; a reader never sees half.
After kill −9 of everything it is stale: `alive` tells which of its processes still exist.
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
    """A folder that holds no standalone cluster, or one that does not run."""

    name = "no-cluster"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One child process. `address` is a bookie's `host:port` or a broker's URL."""

    name: str
    kind: str
    pid: int = 0
    state: str = "starting"
    """`starting`, `running`, `dead` or `stopped`."""
    address: str = ""
    port: int = 0
    admin_port: int = 0
    """A bookie's, for health, metrics and what `octavo bookie … --url` asks; a broker has none."""
    log: str = ""
    restarts: int = 0
    read_only_because: str = ""
    """Why a bookie took no adds when it started; empty when it took them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The state of a standalone cluster."""

    folder: str
    metadata_url: str
    supervisor_pid: int = 0
    ready: bool = False
    shown: Sequence[str] = field(default_factory=tuple)
    """With TLS: the files of its CA, and of a certificate and key that it takes from clients."""
    token_file: str = ""
    """Where it is secured: the file of its administrator's token, for this user alone."""
    members: Sequence[Member] = field(default_factory=tuple)

    def of_kind(self, kind: str) -> list[Member]:
        """The bookies or the brokers, in order of their names."""
        return [member for member in self.members if member.kind == kind]

    def member(self, name: str) -> Member | None:
        """The member called `name`."""
        return next((member for member in self.members if member.name == name), None)

    @property
    def urls(self) -> list[str]:
        """Every broker's URL."""
        return [member.address for member in self.of_kind("broker") if member.address]

    def with_member(self, member: Member) -> ClusterFile:
        """The same with `member` in place of its namesake, or added."""
        kept = {known.name: known for known in self.members}
        kept[member.name] = member
        return replace(self, members=tuple(kept.values()))

    def write(self) -> None:
        """Replace the file in `folder`."""
        path = Path(self.folder) / FILE_NAME
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        draft.rename(path)


def read_cluster(folder: Path) -> ClusterFile:
    """Raises `NoCluster`, with what would help."""
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
        raise NoCluster(f"{path} is not readable: {error}") from error


def alive(pid: int) -> bool:
    """Whether a process `pid` exists (it may be another one by now)."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
