"""What a checker says when a promise is broken: the rule's short name and the facts."""


class Violation(Exception):
    """Ends the run. `rule` is stable, so that campaigns can count by it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail
