"""What the terminal shows while something runs."""

from __future__ import annotations

from io import StringIO

from viprl.reports.progress import LiveProgress, PlainProgress, Progress, make_progress


def test_plain_progress_prints_a_few_lines(capsys):
    progress = PlainProgress(lines=4)
    progress.start("stage", 100)
    for step in range(1, 101):
        progress.update(step, reward=0.5)
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "stage: 100 steps",
        *(f"stage: {n}/100" for n in (25, 50, 75, 100)),
    ]


def test_the_live_line_is_drawn_over_itself_and_left_behind():
    stream = StringIO()
    with LiveProgress(stream) as progress:
        progress.start("warm start", 4)
        progress.update(2, loss=1.25)
        progress.message("a word")
        progress.count(4, 4, "done")
    lines = stream.getvalue().split("\r")
    assert "2/4" in lines[2] and "loss 1.25" in lines[2] and lines[3].startswith("a word")
    assert len(lines[3].rstrip("\n")) >= len(lines[2]), "a shorter text must cover the line below it"
    assert "4/4" in lines[4] and lines[4].endswith("done\n")


def test_a_terminal_gets_the_live_line_and_a_quiet_call_nothing(capsys):
    class Terminal(StringIO):
        def isatty(self):
            return True

    assert isinstance(make_progress(stream=Terminal()), LiveProgress)
    assert isinstance(make_progress(stream=StringIO()), PlainProgress)
    with make_progress(show=False) as silent:
        silent.start("stage", 2)
        silent.update(1)
        silent.message("unheard")
    assert type(silent) is Progress and capsys.readouterr().out == ""
