"""What people see: document text is data, never markup and never control over the terminal."""

from rich.console import Console

from jobs import console


def rendered(renderable: object) -> str:
    recorder = Console(record=True, width=100, force_terminal=True)
    with recorder.capture() as captured:
        recorder.print(renderable)
    return captured.get()


def test_control_and_bidirectional_marks_become_visible() -> None:
    assert console.visible("a\x1b[31mred\x07 \u202egnp.exe\u202c\r\nnext\tline") == (
        "a\\u001b[31mred\\u0007 \\u202egnp.exe\\u202c\nnext\tline"
    )


def test_hostile_text_is_shown_as_text() -> None:
    hit = {
        "chunk_index": 0,
        "score": 1.0,
        "context": "This [bold]is[/bold] \x1b[2Jcleared.",
        "heading_path": ["[red]A"],
        "dense": None,
        "lexical": 2.0,
    }
    passage = {
        "document_id": "x[/]",
        "title": "[link=http://evil]t",
        "start": 0,
        "end": 9,
        "text": "[blink]text\x1b]0;title\x07",
        "score": 1.0,
        "hits": [hit],
    }
    shown = rendered(console.passages({"snapshot": 1, "passages": [passage]}, "q"))
    for literal in ("[bold]is[/bold]", "[red]A", "x[/]", "[link=http://evil]t", "[blink]text", "\\u001b]0;title"):
        assert literal in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown


def test_no_match_is_said() -> None:
    assert "nothing in snapshot 3" in rendered(console.passages({"snapshot": 3, "passages": []}, "q"))
