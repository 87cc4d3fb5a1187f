"""What users install: the wheel holds the package whole, the source archive what builds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import distillspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = (
    "import setuptools.build_meta as b; print(b.build_sdist('out')); print(b.build_wheel('out'))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both from a copy of the repository in which someone has worked."""
    root = tmp_path_factory.mktemp("packaging")
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for folder in ("src", "tests", "docs", "experiments"):
        shutil.copytree(ROOT / folder, root / folder, ignore=left_out)
    for file in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(file, root)
    for litter in ("runs/demo/run.json", "src/distillspec/math/__pycache__/x.pyc", "dist/old.whl"):
        (root / litter).parent.mkdir(parents=True)
        (root / litter).write_text("{}")
    subprocess.run([sys.executable, "-c", BUILD], cwd=root, check=True, capture_output=True)
    return root / "out"


def package_files():
    package = ROOT / "src" / "distillspec"
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(package.parent).as_posix() for path in files}


def test_the_wheel_is_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == package_files()
    assert any(name.endswith("licenses/LICENSE") for name in about)
    assert wheel.stat().st_size < 1_000_000


def test_the_source_archive_is_what_builds_the_wheel(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    about = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    rest = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"}
    assert names - about == rest | {f"src/{name}" for name in package_files()}
    assert sdist.stat().st_size < 1_000_000


def test_the_version_is_said_once(built):
    assert distillspec.__version__ == PROJECT["version"]
    assert [path.name.split("-")[1] for path in built.glob("*.whl")] == [PROJECT["version"]]
    said = re.escape(PROJECT["version"])
    for path in [*(ROOT / "src").rglob("*.py"), ROOT / "mkdocs.yml", ROOT / "Makefile"]:
        assert not re.search(rf"version\w*\W+{said}\b", path.read_text("utf-8")), path


def test_the_pythons_that_are_stated_begin_with_the_least_that_installs():
    prefix = "Programming Language :: Python :: 3."
    stated = [int(one.removeprefix(prefix)) for one in PROJECT["classifiers"] if prefix in one]
    assert PROJECT["requires-python"] == f">=3.{stated[0]}"
    assert stated == [10, 11, 12, 13]
