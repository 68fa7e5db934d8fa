"""examples/copy_task.py does what its docstring says, run as a user runs it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import keras
import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "copy_task.py"
ATTENTIONS = ["none", "bahdanau", "luong"]
ROW = re.compile(r"(\w+) +\| length +(\d+) \| +([\d.]+) % of tokens \| +([\d.]+) % of seq")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What one quick run printed, and the folder that it made."""
    if keras.backend.backend() == "jax":
        pytest.skip("it trains at every length up to 10, and JAX compiles each for itself")
    folder = tmp_path_factory.mktemp("copy") / "made" / "pictures"
    command = [sys.executable, str(SCRIPT), "--quick", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture
def parse(monkeypatch):
    """The script run up to its arguments, in this process: importing Keras takes seconds."""

    def parse(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        return runpy.run_path(str(SCRIPT))["parse_arguments"]()

    return parse


def test_each_cell_is_printed_as_a_row(quick):
    rows = ROW.findall(quick[0].stdout)
    assert [(name, int(length)) for name, length, *_ in rows] == [
        (name, length) for name in ATTENTIONS for length in (5, 10)
    ]
    for _, _, tokens, sequences in rows:
        assert 0 <= float(sequences) <= float(tokens) <= 100


def test_attention_copies_what_the_plain_model_cannot(quick):
    rows = ROW.findall(quick[0].stdout)
    tokens = {name: float(accuracy) for name, length, accuracy, _ in rows if length == "10"}
    assert tokens["bahdanau"] > 90
    assert tokens["luong"] > 90
    assert tokens["none"] < 60


def test_the_table_is_markdown_with_the_same_numbers(quick):
    lines = quick[0].stdout.splitlines()
    start = lines.index("| length | none | bahdanau | luong |")
    assert lines[start + 1] == "|---:|---|---|---|"
    rows = [line.strip("| ").split(" | ") for line in lines[start + 2 : start + 4]]
    assert [row[0] for row in rows] == ["5", "10"]
    printed = {(name, length): t for name, length, t, _ in ROW.findall(quick[0].stdout)}
    for length, *cells in rows:
        for name, cell in zip(ATTENTIONS, cells, strict=True):
            assert re.fullmatch(r"[\d.]+ / [\d.]+ \(\d+ s\)", cell)
            assert cell.startswith(printed[name, length])


def test_progress_is_visible_and_nothing_warns(quick):
    done, _ = quick
    assert "/step" in done.stdout
    assert "retracing" not in done.stderr
    assert "Warning" not in done.stderr


def test_the_pictures_are_written(quick):
    _, folder = quick
    expected = {"accuracy.png", "alignment_bahdanau.png", "alignment_luong.png"}
    assert {path.name for path in folder.iterdir()} == expected
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--lengths", "5", "-10"], r"--lengths: should be an integer from 2 .*, not -10"),
        (["--lengths", "five"], r"--lengths: invalid integer value: 'five'"),
        (["--units", "0"], r"--units: should be an integer from 1"),
        (["--steps", "1.5"], r"--steps: invalid integer value: '1.5'"),
        (["--seed", "-1"], r"--seed: should be an integer from 0"),
        (["--attention", "transformer"], r"--attention: invalid choice: 'transformer'.*luong"),
        (["--output", SCRIPT], r"--output: .*copy_task.py"),
    ],
)
def test_a_bad_argument_is_refused_at_once(parse, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_help_explains_each_argument(parse, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse("--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name in ("lengths", "units", "attention", "steps", "seed", "output", "quick"):
        assert re.search(rf"\n  --{name}\b.*?\s{{2,}}[a-z]", text, re.DOTALL)
    assert "default: (5, 10, 20, 40, 80)" in " ".join(text.split())


def test_lengths_are_trained_from_the_shortest_up(parse, tmp_path):
    arguments = parse("--lengths", 9, 3, 9, "--quick", "--output", tmp_path)
    assert arguments.lengths == [3, 9]
