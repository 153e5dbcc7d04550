"""The specification in docs/spec is what the code cites: every citation, test, check and link is there.

A citation is `[rule N]` or `[rules N, M]` for docs/spec/protocols.md, and an ID in brackets, or several with
commas, for docs/spec/requirements.md. docs/spec/README.md explains it to people.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from millrace.lab.sim.planted.registry import BUGS

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "docs" / "spec"
RULES = range(1, 41)
IDS = [
    f"{section}{number}"
    for section, count in {"A": 9, "B": 9, "C": 8, "D": 10, "E": 9, "F": 10, "G": 8}.items()
    for number in range(1, count + 1)
]

RULE_CITATION = re.compile(r"\[rules? (\d+(?:, \d+)*)\]")
ID_CITATION = re.compile(r"\[([A-G]\d{1,2}(?:, [A-G]\d{1,2})*)\]")
# Citations in another form, which the search for a rule would not find.
LOOSE = re.compile(r"\((?:rules? \d|[A-G]\d{1,2}[),])|\[rules?(?: [\d, ]*)?$|\[(?:[A-G]\d{1,2}, ?)+$")
# Names of documents that are not in the repository.
ABSENT = re.compile(r"\b(?:PROTOCOLS|REQUIREMENTS|DESIGN|PERFORMANCE|STYLE)\.md\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)


def texts(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".pyi", ".c", ".md", ".txt", ".tsv"}:
                yield path, path.read_text()


def lines() -> Iterator[tuple[str, str]]:
    """Every line that may cite, with where it stands."""
    for path, text in texts("src", "tests", "docs"):
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rules() -> dict[int, str]:
    """Rule -> its text and what stands under it."""
    parts = re.split(r"^### Rule (\d+)$", (SPEC / "protocols.md").read_text(), flags=re.M)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def requirements() -> list[tuple[str, str]]:
    """ID and what is said to show it, in the order of the page."""
    rows = re.findall(r"^\| ([A-G]\d+) \|.*\| (.*?) \|$", (SPEC / "requirements.md").read_text(), re.M)
    return [(name, shown) for name, shown in rows]


def slug(heading: str) -> str:
    """The anchor that a heading has on a page."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def named(text: str, label: str) -> list[str]:
    """What stands in backticks in the list items of this label."""
    items = re.findall(rf"^- {label}: (.*?)(?=^- |\Z|^#)", text, re.M | re.S)
    return [name for item in items for name in re.findall(r"`([^`\n]+)`", item)]


def test_the_pages_hold_every_rule_and_every_id_once_and_in_order() -> None:
    assert list(rules()) == list(RULES)
    assert [name for name, _ in requirements()] == IDS


def test_every_line_says_what_shows_it_or_that_nothing_does() -> None:
    for name, shown in requirements():
        assert "`tests/" in shown or shown.startswith("Not shown yet: "), name
    for number, text in rules().items():
        assert named(text, "Tests") or "\n- Nothing checks this yet.\n" in text, f"rule {number}"


def test_every_test_that_the_specification_names_exists() -> None:
    gone = [
        f"{page.name}: {name}"
        for page in sorted(SPEC.glob("*.md"))
        for name in re.findall(r"`(tests/[^`\s]+)`", page.read_text())
        if not (ROOT / name).exists()
    ]
    assert not gone


def test_every_check_and_planted_bug_that_a_rule_names_exists() -> None:
    source = "".join(text for _, text in texts("src"))
    checks = set(re.findall(r'\b(?:Violation|fail)\(\s*"([a-z ]+)"', source))
    bugs = {name for of_mode in BUGS.values() for name in of_mode}
    for number, text in rules().items():
        assert checks.issuperset(named(text, "Simulator checks")), f"rule {number}"
        assert bugs.issuperset(named(text, "Planted bugs")), f"rule {number}"


def test_every_citation_is_of_a_rule_or_an_id_that_exists() -> None:
    cited, unknown = 0, []
    for place, line in lines():
        numbers = [int(n) for found in RULE_CITATION.findall(line) for n in found.split(", ")]
        names = [name for found in ID_CITATION.findall(line) for name in found.split(", ")]
        cited += len(numbers) + len(names)
        unknown += [f"{place}: rule {n}" for n in numbers if n not in RULES]
        unknown += [f"{place}: {name}" for name in names if name not in IDS]
    assert not unknown
    assert cited > 100, "the search finds the citations that are there"


def test_citations_have_the_form_that_a_search_finds() -> None:
    wrong = [f"{place}: {line.strip()}" for place, line in lines() if LOOSE.search(line)]
    assert not wrong


def test_nothing_cites_documents_that_are_not_in_the_repository() -> None:
    wrong = [f"{place}: {line.strip()}" for place, line in lines() if ABSENT.search(line)]
    assert not wrong


def test_every_relative_link_leads_to_a_file_and_its_heading() -> None:
    broken = []
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        text = re.sub(r"`[^`\n]*`", "`", text)
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            headings = HEADING.findall(path.read_text()) if anchor and path.suffix == ".md" else []
            if not path.exists() or (anchor and anchor not in map(slug, headings)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
