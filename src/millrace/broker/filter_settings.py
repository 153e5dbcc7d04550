"""The check of topic filters in a setting, the same for streams and groups."""

from collections.abc import Iterator

from millrace.broker.topics.filters import is_valid


def wrong_filters(filters: tuple[str, ...], count_max: int) -> Iterator[str]:
    """Sentences about filters that a stream or a group cannot have."""
    if len(filters) > count_max or len(set(filters)) != len(filters):
        yield f"at most {count_max} filters, each once"
    for filter in filters:
        if not is_valid(filter) or filter.startswith("$"):
            yield f"{filter!r} is not a filter of ordinary topics"
