"""Changes that mutation testing (tests/mutants.py) makes."""

import ast

from tests.mutants import changes


def test_each_keyword_argument_is_left_out() -> None:
    """One at a time; positional arguments are kept, and so are those of a dictionary."""
    call = ast.parse("f(a, size=2, rate=b, **more)", mode="eval").body
    left = [(name, ast.unparse(new)) for name, new in changes(call) if new is not None]
    name = "keyword argument left out"
    assert left == [(name, "f(a, rate=b, **more)"), (name, "f(a, size=2, **more)")]
    assert ast.unparse(call) == "f(a, size=2, rate=b, **more)"
