"""The installed package: one name among a user's own modules, whatever their names."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("bookie", "broker", "ledger", "metadata", "protocol")


def call(*command: str | Path, folder: Path, **environment: str) -> str:
    """Return the output of a command, without the tests' own environment."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(one) for one in command],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path, into: Path, kind: str) -> Path:
    call(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", into, folder=folder)
    (found,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel, and with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", folder, folder=ROOT)
    found = folder / "bin" / "python"
    call(
        *(sys.executable, "-m", "pip", "--python", found, "install", "--quiet", "--no-deps"),
        *("--no-index", wheel),
        folder=ROOT,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    # A plain path: .pth files in there, such as an editable install's, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A user's project, whose modules have names like those of our layers."""
    for layer in LAYERS:
        if layer in ("broker", "bookie"):
            (tmp_path / layer).mkdir()
            (tmp_path / layer / "__init__.py").write_text("MINE = True\n")
        else:
            (tmp_path / f"{layer}.py").write_text("MINE = True\n")
    return tmp_path


@pytest.mark.long
def test_a_users_own_modules_are_theirs_and_ours_are_ours(python: Path, users_folder: Path) -> None:
    asked = (
        "import sys\n"
        "from octavo import Client\n"
        "import octavo.bookie.node, octavo.broker.broker, octavo.ledger.client\n"
        "import octavo.cli.main, octavo.metadata.embedded, octavo.protocol.frames\n"
        "import bookie, broker, ledger, metadata, protocol\n"
        "assert all(one.MINE for one in (bookie, broker, ledger, metadata, protocol))\n"
        "print(octavo.__file__, octavo.bookie.node.__name__, Client.__name__)\n"
    )
    (users_folder / "asked.py").write_text(asked)
    told = call(python, "asked.py", folder=users_folder).split()
    assert told[1:] == ["octavo.bookie.node", "Client"]
    assert Path(told[0]).is_relative_to(python.parent.parent), "not the clone's"
    assert "octavo" in call(python.parent / "octavo", "--version", folder=users_folder)


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS)
def test_nobody_imports_a_layer_by_its_short_name(layer: str, python: Path, tmp_path: Path) -> None:
    asked = f"import importlib.util; print(importlib.util.find_spec({layer!r}))"
    assert call(python, "-c", asked, folder=tmp_path).strip() == "None"


def test_the_wheel_has_every_module_once_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"octavo", "pyspark_octavo"}
    found = sorted(name for name in names if name.endswith(".py"))
    there = []
    for package in ("octavo", "pyspark_octavo"):
        for folder, _, files in os.walk(ROOT / package, followlinks=True):
            inside = Path(folder).relative_to(ROOT).as_posix()
            there += [f"{inside}/{one}" for one in files if one.endswith(".py")]
    assert found == sorted(there)
    assert all(f"octavo/{layer}/__init__.py" in found for layer in LAYERS)
    assert "octavo/py.typed" in names


def test_a_wheel_made_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built(ROOT, tmp_path, "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    other = built(folder, tmp_path / "other", "wheel")
    names = [zipfile.ZipFile(one).namelist() for one in (wheel, other)]
    assert sorted(names[0]) == sorted(names[1])
