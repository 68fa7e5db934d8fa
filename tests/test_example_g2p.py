"""examples/g2p.py does what its docstring says, run as a user runs it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the example exports a SavedModel"
)

SCRIPT = Path(__file__).parents[1] / "examples" / "g2p.py"
# A toy language: every letter is said as its capital.
WORDS = ["ab", "bac", "cab", "a", "abba", "cc", "bcab", "caab"]


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def toy_files(folder, **changed):
    text = "".join(f"{word}\t{' '.join(word.upper())}\n" for word in WORDS)
    paths = [folder / f"{part}.tsv" for part in ("train", "dev", "test")]
    for path in paths:
        path.write_text(changed.get(path.stem, text), encoding="utf-8")
    return paths


def assert_saved_and_served(result, folder):
    assert result.returncode == 0, result.stderr
    assert "predictions equal: True" in result.stdout
    assert "logits equal: True" in result.stdout
    assert "Warning" not in result.stderr
    assert (folder / "g2p.keras").is_file()
    assert (folder / "saved_model" / "saved_model.pb").is_file()
    assert (folder / "vocabulary.json").is_file()


def pronounced(output):
    """Word, right phonemes and what the export said, of each such line."""
    return re.findall(r"^ *(\S+) \| (.+) \| (.*)$", output, flags=re.MULTILINE)


def test_quick_learns_cmudict_and_serves_it(tmp_path):
    result = run("--quick", "--output", tmp_path)
    assert_saved_and_served(result, tmp_path)
    # The most frequent token, the end of the word, is 13 % of all.
    assert float(re.search(r"token accuracy (\S+)", result.stdout)[1]) > 0.6
    words = pronounced(result.stdout)
    assert len(words) >= 5
    assert any(right.split()[0] == said.split()[0] for _, right, said in words if said)


def test_own_files_are_read_and_their_words_pronounced(tmp_path):
    files = toy_files(tmp_path)
    result = run("--data", *files, "--epochs", 1, "--units", 5, "--output", tmp_path)
    assert_saved_and_served(result, tmp_path)
    assert "CMUdict" not in result.stdout
    assert f"{len(WORDS)} to train" in result.stdout
    words = [(word, right) for word, right, _ in pronounced(result.stdout)]
    assert words == [(word, " ".join(word.upper())) for word in WORDS]


@pytest.mark.parametrize(
    "line",
    ["ab A B", "ab\t", "\tA B", "ab\tA B\tC", ""],
    ids=["no tab", "no phonemes", "no word", "two tabs", "empty line"],
)
def test_a_malformed_line_is_named(tmp_path, line):
    files = toy_files(tmp_path, dev=f"ab\tA B\n{line}\nac\tA C\n")
    with pytest.raises(ValueError, match=r"dev\.tsv, line 2: expected a word, one TAB"):
        runpy.run_path(str(SCRIPT))["read_pairs"](files[1])


def test_a_malformed_file_ends_the_command_with_a_clear_error(tmp_path):
    files = toy_files(tmp_path, test="")
    result = run("--data", *files, "--output", tmp_path / "out")
    assert result.returncode == 2
    assert "test.tsv: expected at least one line" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()
