"""examples/copy_task.py does what its docstring says, run as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "copy_task.py"
ATTENTIONS = ["none", "bahdanau", "luong"]
ROW = re.compile(
    r"(\w+) +\| length +(\d+) \| +([\d.]+) % of tokens \| +([\d.]+) % of sequences"
)


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy") / "made" / "pictures"
    done = run("--quick", "--output", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


def test_each_cell_is_printed_as_a_row(quick):
    rows = ROW.findall(quick[0].stdout)
    assert [(name, int(length)) for name, length, *_ in rows] == [
        (name, length) for name in ATTENTIONS for length in (5, 10)
    ]
    for _, _, tokens, sequences in rows:
        assert 0 <= float(sequences) <= float(tokens) <= 100


def test_attention_copies_what_the_plain_model_cannot(quick):
    tokens = {
        (name, int(length)): float(t) for name, length, t, _ in ROW.findall(quick[0].stdout)
    }
    assert tokens["bahdanau", 10] > 90
    assert tokens["luong", 10] > 90
    assert tokens["none", 10] < 60


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
def test_a_bad_argument_is_refused_at_once(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr


def test_help_explains_each_argument():
    done = run("--help")
    assert done.returncode == 0
    for name in ("lengths", "units", "attention", "steps", "seed", "output", "quick"):
        assert re.search(rf"\n  --{name}\b.*?\s{{2,}}[a-z]", done.stdout, re.DOTALL)
    assert "default: (5, 10, 20, 40, 80)" in " ".join(done.stdout.split())
