"""The frame that all pictures of the benchmarks share: a white page with one line of text below."""


def page(width: int, height: int, parts: list[str], legend: str) -> str:
    """An SVG of these parts. `legend` is text with `tspan` elements, not yet escaped by anybody."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    style = 'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
    last = f'<text x="10" y="{height - 8}">{legend}</text>'
    return head + style + "\n".join(parts) + "\n" + last + "\n</svg>\n"
