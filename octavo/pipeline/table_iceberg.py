"""An Iceberg table by PyIceberg: position, commits, joins of small files, expiry.

Every commit asserts the snapshot that it was made for, and is tried once: PyIceberg's own retries
would put the same messages on top of another process's commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from octavo.pipeline.table_rules import (
    FOLLOWER,
    DataFile,
    Position,
    Snapshot,
    TakenOver,
    Upkeep,
    resumed,
    to_expire,
    to_join,
)
from octavo.protocol.codes import OctavoError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table, Transaction

CATALOG = "octavo"
"""The name of the catalog that `--to DIR` makes: SQL catalogs keep tables by it."""
_DAY = "day"
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
Step = Callable[[str], None]
"""Called with the step's name before each step that changes the table."""


class TableTaken(OctavoError):
    name = "table-taken"


class Conflict(OctavoError):
    """Another program changed the table after it was read: read its position again."""

    name = "table-conflict"


@dataclass(frozen=True)
class Place:
    to: str
    namespace: str
    name: str
    catalog: str | None = None
    """A catalog's URL or its name in PyIceberg's configuration. None: a catalog in the folder
    `to`.
    """
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        return None if "://" in self.to else Path(self.to).absolute()


def catalog_of(place: Place) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given: dict[str, str] = {}
    if place.to:
        given["warehouse"] = place.to if place.folder is None else str(place.folder)
    name = CATALOG
    if place.catalog is None:
        assert place.folder is not None
        place.folder.mkdir(parents=True, exist_ok=True)
        given["uri"] = f"sqlite:///{place.folder / 'catalog.db'}"
    elif "://" in place.catalog:
        given["uri"] = place.catalog
    else:
        name = place.catalog
    return load_catalog(name, **{**given, **place.properties})


@contextlib.contextmanager
def only_follower(place: Place) -> Iterator[None]:
    """Hold the table for this process, if it is in a local folder. Raises `TableTaken`.

    The kernel ends the lock with the process. Processes of other machines are kept apart by the
    property `octavo.follower` (`check_mine`).
    """
    if place.folder is None:
        yield
        return
    place.folder.mkdir(parents=True, exist_ok=True)
    path = place.folder / f".{place.namespace}.{place.name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise TableTaken(
                f"process {holder} already follows a topic into table {place.namespace}."
                f"{place.name} of {place.folder}: stop it first, or choose another --table"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


class IcebergTable:
    def __init__(self, place: Place, follower: str, step: Step) -> None:
        self._place = place
        self._follower = follower
        self._step = step
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._has_committed = False

    @property
    def _identifier(self) -> tuple[str, ...]:
        return (*self._place.namespace.split("."), self._place.name)

    def load(self) -> bool:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if self._catalog is None:
            self._catalog = catalog_of(self._place)
        try:
            self._table = self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._table = None
        return self._table is not None

    def forget(self) -> None:
        self._catalog = None

    def create(
        self, columns: pa.Schema, properties: Mapping[str, str], *, by_day: bool = True
    ) -> None:
        """Create the table, divided by the day of `timestamp` if `by_day`, unless it is there."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform

        assert self._catalog is not None
        self._step("create")
        for depth in range(1, len(self._identifier)):
            with contextlib.suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(self._identifier[:depth])
        with (
            contextlib.suppress(TableAlreadyExistsError),
            self._catalog.create_table_transaction(
                self._identifier, columns, properties={**_PROPERTIES, **properties}
            ) as change,
        ):
            if by_day:
                with change.update_spec() as spec:
                    spec.add_field("timestamp", DayTransform(), _DAY)
        self.load()

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def table(self) -> Table:
        assert self._table is not None
        return self._table

    @property
    def properties(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.table.properties
        return found

    def position(self) -> Position:
        return resumed(self._current(), self._snapshots(), self.properties)

    def _current(self) -> int | None:
        found: int | None = self.table.metadata.current_snapshot_id
        return found

    def _snapshots(self) -> list[Snapshot]:
        return [
            Snapshot(
                one.snapshot_id,
                one.parent_snapshot_id,
                one.timestamp_ms,
                {} if one.summary is None else one.summary.additional_properties,
            )
            for one in self.table.metadata.snapshots
        ]

    def check_mine(self) -> None:
        holder = self.properties.get(FOLLOWER, "")
        if self._has_committed and holder != self._follower:
            raise TakenOver(
                f"another process ({holder}) follows the topic into this table: this job ends"
            )

    def append(
        self, rows: pa.Table, position: Position, columns: pa.Schema, properties: Mapping[str, str]
    ) -> None:
        """Add rows and new columns, and set the position, in one commit.

        Also claims the table: another process that follows into it ends at its next commit. Raises
        `Conflict` if the table has changed since `load`.
        """
        said = position.summary()
        with self._commit("append") as change:
            if any(one.name not in self._names() for one in columns) or not self._fits(columns):
                with change.update_schema() as schema:
                    schema.union_by_name(columns)
            change.set_properties({**said, **properties, FOLLOWER: self._follower})
            self._step("write")
            change.append(rows, snapshot_properties={**said, FOLLOWER: self._follower})
        self._has_committed = True

    def _names(self) -> set[str]:
        return {one.name for one in self.table.schema().fields}

    def _fits(self, columns: pa.Schema) -> bool:
        known = self.table.schema().as_arrow()
        return all(_has(known.field(one.name).type, one.type) for one in columns)

    @contextlib.contextmanager
    def _commit(self, what: str) -> Iterator[Transaction]:
        """Commit once, and only if the table is as it was loaded. Raises `Conflict`."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.table.update import (
            AssertCurrentSchemaId,
            AssertDefaultSpecId,
            AssertRefSnapshotId,
            AssertTableUUID,
        )

        metadata = self.table.metadata
        change = self.table.transaction()
        yield change
        # Exactly these: PyIceberg's own say less, such as none for a change of properties.
        requirements = (
            AssertTableUUID.model_validate({"uuid": metadata.table_uuid}),
            AssertRefSnapshotId.model_validate(
                {"ref": "main", "snapshot-id": metadata.current_snapshot_id}
            ),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        self._step(f"commit {what}")
        try:
            self.table._do_commit(updates=change._updates, requirements=requirements)
        except (CommitFailedException, ValidationException) as error:
            self.forget()
            raise Conflict(f"the table was changed by another program: {error}") from error
        self._step(f"committed {what}")

    # ------------------------------------------------------------------ files of others

    def files(self) -> dict[str, IcebergFile]:
        """Return the table's data files by path."""
        return {one.file.file_path: one.file for one in self.table.scan().plan_files()}

    def change_files(self, added: Iterable[str], removed: Iterable[IcebergFile]) -> None:
        """Add existing Parquet files, and remove others, in one commit.

        The files are neither copied nor deleted. Raises `Conflict`.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file
        from pyiceberg.table import TableProperties

        table = self.table
        with self._commit("files") as change:
            names = table.metadata.schema().name_mapping.model_dump_json()
            change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
            with change.update_snapshot().overwrite() as new:
                for file in removed:
                    new.delete_data_file(file)
                for path in added:
                    new.append_data_file(
                        parquet_file_to_data_file(table.io, change.table_metadata, path)
                    )

    # ------------------------------------------------------------------ upkeep

    def join_small(self, keep: Upkeep, groups_max: int = 4) -> int:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

        table = self.table
        spec = table.spec().spec_id
        tasks = {
            one.file.file_path: one
            for one in table.scan().plan_files()
            # Rows of other files were deleted by another program, or their division differs.
            if not one.delete_files and one.file.spec_id == spec
        }
        every = [
            DataFile(path, one.file.partition, one.file.file_size_in_bytes, one.file.record_count)
            for path, one in tasks.items()
        ]
        gone = 0
        for group in to_join(every, keep)[:groups_max]:
            scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            rows = scan.to_table([tasks[one.path] for one in group])
            rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
            assert rows.num_rows == sum(one.rows for one in group)
            said = self.position().summary()
            with self._commit("join") as change:
                self._step("write join")
                with change.update_snapshot({**said, FOLLOWER: self._follower}).overwrite() as new:
                    for one in group:
                        new.delete_data_file(tasks[one.path].file)
                    for made in _dataframe_to_data_files(
                        table_metadata=change.table_metadata, df=rows, io=table.io
                    ):
                        new.append_data_file(made)
            gone += len(group)
        return gone

    def expire(self, keep: Upkeep) -> int:
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        table = self.table
        metadata = table.metadata
        protected = [one.snapshot_id for name, one in metadata.refs.items() if name != "main"]
        old = to_expire(
            self._current(), self._snapshots(), protected, int(time.time() * 1000), keep
        )
        if not old:
            return 0
        ids = {one.id for one in old}
        files = self._only_named_by(ids) if self._is_one_line() else set()
        with self._commit("expire") as change:
            ExpireSnapshots(change).by_ids(sorted(ids)).commit()
        for path in sorted(files):
            # A file that stays takes space, and nothing else.
            with contextlib.suppress(OSError):
                table.io.delete(path)
        self._step("deleted files")
        return len(old)

    def _is_one_line(self) -> bool:
        every = self._snapshots()
        known = {one.id for one in every}
        parents = [one.parent for one in every if one.parent in known]
        return len(set(parents)) == len(parents) and len(parents) == len(every) - 1

    def _only_named_by(self, ids: set[int]) -> set[str]:
        """Return manifest lists, manifests and data files that no other snapshot names.

        Snapshots are in one line and `ids` are its oldest: a data file is named by no other if one
        of `ids`, or the snapshot after them, has removed it.
        """
        from pyiceberg.manifest import ManifestEntryStatus

        io = self.table.io
        old: set[str] = set()
        kept: set[str] = set()
        found: set[str] = set()
        for one in self.table.metadata.snapshots:
            is_old = one.snapshot_id in ids
            manifests = one.manifests(io)
            (old if is_old else kept).update(each.manifest_path for each in manifests)
            if is_old:
                found.add(one.manifest_list)
            if is_old or one.parent_snapshot_id in ids:
                for each in manifests:
                    if each.added_snapshot_id == one.snapshot_id and each.deleted_files_count:
                        entries = each.fetch_manifest_entry(io, discard_deleted=False)
                        found.update(
                            entry.data_file.file_path
                            for entry in entries
                            if entry.status == ManifestEntryStatus.DELETED
                        )
        return found | (old - kept)


def _has(known: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(wanted):
        if not pa.types.is_struct(known):
            return False
        inside = {one.name: one.type for one in known}
        return all(one.name in inside and _has(inside[one.name], one.type) for one in wanted)
    if pa.types.is_list(wanted) or pa.types.is_large_list(wanted):
        is_list = pa.types.is_list(known) or pa.types.is_large_list(known)
        return is_list and _has(known.value_type, wanted.value_type)
    return True


def away(error: BaseException) -> str | None:
    """Return why a catalog or the data's place did not answer; None: another error."""
    module = type(error).__module__.partition(".")[0]
    names: Iterable[str] = {kind.__name__ for kind in type(error).__mro__}
    gone = {
        "OperationalError", "InterfaceError", "RequestException", "ServerError",
        "ServiceUnavailableError", "CommitStateUnknownException", "AuthorizationExpiredError",
    }  # fmt: skip
    if isinstance(error, OSError) or (
        module in ("sqlalchemy", "requests", "pyiceberg") and gone & set(names)
    ):
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None
