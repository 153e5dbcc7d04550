"""The bounds: defaults in their own range, and relations that cannot be broken."""

import pytest

from millrace.errors import ConfigError
from millrace.limits import DEFAULT_LIMITS, RELATIONS, Limits


def test_every_default_lies_in_its_range_and_has_a_reason() -> None:
    for item in Limits.fields().values():
        assert item.read(item.default) == item.default
        assert item.meta.ge is not None and item.meta.le is not None, item.name
        assert item.description, item.name


@pytest.mark.parametrize(("small", "large"), [(small, large) for small, large, _ in RELATIONS])
def test_a_broken_relation_names_both_bounds(small: str, large: str) -> None:
    value = getattr(DEFAULT_LIMITS, small) - 1
    with pytest.raises(ConfigError, match=rf"limits\.{small} = .* more than limits\.{large} = {value}:"):
        Limits(**{large: value})
    assert getattr(Limits(**{large: value + 1}), large) == value + 1


def test_a_rate_is_a_number_or_a_size_and_no_duration() -> None:
    fields = Limits.fields()
    assert fields["publishes_per_s_max"].unit == fields["user_connects_per_s_max"].unit == ""
    assert fields["user_publish_bytes_per_s_max"].unit == "bytes"
    assert fields["keep_alive_s_max"].unit == "s"
