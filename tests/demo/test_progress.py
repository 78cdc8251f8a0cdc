"""What a long command shows where there is no terminal."""

import io

from e2e.progress import Progress


def test_the_clock_is_before_words_and_never_alone_on_a_line() -> None:
    shown = io.StringIO()
    progress = Progress(shown)
    progress.line("\nfirst\n  second")
    with progress.step("work") as say:
        say("")
        say("half")
    lines = shown.getvalue().splitlines()
    assert [line.partition("] ")[2] or line for line in lines[:5]] == ["", "first", "  second", "work", "  half"]
    assert all(line.startswith("[") for line in (lines[1], *lines[3:]))
