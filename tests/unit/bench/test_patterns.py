"""The pattern table agrees with the generator it drives and with the page that explains it."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from millrace.lab.bench import generator, peers
from millrace.lab.bench.clusters import CLUSTER_PEERS
from millrace.lab.bench.patterns import (
    ABSOLUTE,
    BY_NAME,
    CLUSTER_PATTERNS,
    CPU_FIELD,
    PATTERNS,
    REGIMES,
    VERSION_TARGET,
    Pattern,
)

EVERY = pytest.mark.parametrize("pattern", (*PATTERNS, *CLUSTER_PATTERNS), ids=lambda pattern: pattern.name)


def options() -> dict[str, bool]:
    """Option letter -> whether it takes a value, from the generator's own parser."""
    found = re.search(r'getopt_long\(argc, argv, "([^"]+)"', generator.source())
    assert found is not None
    return {letter: bool(value) for letter, value in re.findall(r"([A-Za-z])(:?)", found[1])}


def printed_fields() -> set[str]:
    return set(re.findall(r'\\"(\w+)\\":', generator.source()))


@EVERY
def test_flags_are_options_of_the_generator(pattern: Pattern) -> None:
    known, rest = options(), list(pattern.flags)
    while rest:
        letter = rest.pop(0).removeprefix("-")
        assert letter in known
        if known[letter]:
            assert re.fullmatch(r"\d+|fanin|fanout|pair", rest.pop(0))


@EVERY
def test_flags_leave_port_version_pids_and_duration_to_the_runner(pattern: Pattern) -> None:
    assert not {"-p", "-x", "-V", "-B", "-w", "-t", "-H", "-T"} & set(pattern.flags)


@EVERY
def test_the_qos_in_the_flags_is_the_stated_one(pattern: Pattern) -> None:
    flags = list(pattern.flags)
    assert (int(flags[flags.index("-q") + 1]) if "-q" in flags else 0) == pattern.qos


@EVERY
def test_every_field_is_one_the_generator_prints_and_its_page_explains(pattern: Pattern) -> None:
    page = files("millrace.lab.bench").joinpath("mload.md").read_text()
    names = {*pattern.fields, *(e.field for e in pattern.evidence), *(t.field for t in pattern.targets)}
    assert names <= printed_fields()
    assert all(f"`{name}`" in page for name in names)


@EVERY
def test_regime_and_targets_are_known_words(pattern: Pattern) -> None:
    assert pattern.regime in REGIMES
    assert {t.against for t in pattern.targets} <= {*peers.PEERS, *CLUSTER_PEERS, ABSOLUTE}
    assert {t.field for t in pattern.targets} <= set(pattern.fields)


def test_a_target_against_nats_stands_only_where_nats_can_run() -> None:
    assert all(p.qos == 0 for p in PATTERNS for t in p.targets if t.against == peers.NATS)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(PATTERNS) + len(CLUSTER_PATTERNS)


def test_interpreted_kernels_are_never_asked_for_more_than_the_c_ones() -> None:
    for pattern in BY_NAME.values():
        for target in pattern.targets:
            if target.interpreted is not None and target.field == "delivered_s":
                assert target.interpreted <= target.accelerated
            elif target.interpreted is not None:
                assert target.interpreted >= target.accelerated
    assert VERSION_TARGET.field == CPU_FIELD


def test_the_page_on_benchmarks_names_every_pattern_and_regime() -> None:
    page = Path(__file__).parents[3].joinpath("docs/evidence/benchmarks.md").read_text()
    assert not [name for name in BY_NAME if f"`{name}`" not in page]
    assert not [regime for regime in REGIMES if f"| {regime} |" not in page]
