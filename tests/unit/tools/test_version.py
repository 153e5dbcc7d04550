"""The version stands in one place: a release changes `__version__` and a heading of the changelog."""

import re
import tomllib
from pathlib import Path

from setuptools.config.expand import read_attr

import millrace

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_package_takes_its_version_from_the_program() -> None:
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    attribute = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert read_attr(attribute, {"": "src"}, str(ROOT)) == millrace.__version__


def test_no_page_and_no_file_to_deploy_with_names_a_version_of_the_wheel_or_the_image() -> None:
    files = [ROOT / "README.md", ROOT / "Makefile", *(ROOT / "tools").iterdir()]
    for folder in ("start", "tutorials", "how-to", "reference", "understand"):
        files += (ROOT / "docs" / folder).rglob("*.md")
    files += (ROOT / "deploy").rglob("*")
    named = [
        f"{one.relative_to(ROOT)}: {found}"
        for one in files
        if one.is_file()
        for found in re.findall(r"millrace[-:]\d+\.\d+\S*|millrace==\S+", one.read_text())
    ]
    assert named == []


def test_the_newest_part_of_the_changelog_is_this_version_or_the_next() -> None:
    headings = re.findall(r"^## (\d+\.\d+\.\d+)( \(.+\))?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings, "the changelog has a part for each release"
    (newest, note), *older = headings
    if newest != millrace.__version__:
        assert note == " (unreleased)" and older[0][0] == millrace.__version__
