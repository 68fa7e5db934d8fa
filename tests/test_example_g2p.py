"""examples/g2p.py does what its docstring says, run as a user runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# A toy language: every letter is said as its capital.
WORDS = ["ab", "bac", "cab", "a", "abba", "cc", "bcab", "caab"]
EXPORTS = keras.backend.backend() == "tensorflow"

on_tensorflow = pytest.mark.skipif(not EXPORTS, reason="Keras exports from TensorFlow only")

RATES = re.compile(
    r"^(greedy|beam \d+) *\| PER +([\d.]+) % \| WER +([\d.]+) % \| (\d+) words", re.M
)
SAID = re.compile(r"^ *(\S+) \| (.+) \| (.*)$", re.M)

# What a user has to write who serves the words and has only TensorFlow.
ONLY_TENSORFLOW = """
import json, sys
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
said = [one.decode() for one in served.pronounce(sys.argv[2:]).numpy()]
print(json.dumps([said, "keras_attention" in sys.modules]))
"""


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def toy_files(folder, **changed):
    text = "".join(f"{word}\t{' '.join(word.upper())}\n" for word in WORDS)
    paths = [folder / f"{part}.tsv" for part in ("train", "dev", "test")]
    for path in paths:
        path.write_text(changed.get(path.stem, text), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    return run(EXAMPLES / "g2p.py", "--quick", "--output", folder), folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    files = toy_files(folder)
    sizes = ("--units", 5, "--embedding", 3, "--epochs", 1, "--beam-width", 2)
    return run(EXAMPLES / "g2p.py", "--data", *files, *sizes, "--output", folder), folder


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import g2p_data

    return g2p_data


def assert_all_written(result, folder):
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    assert "generates the same: True" in result.stdout
    for name in ("checkpoint.keras", "g2p.keras", "vocabulary.json"):
        assert (folder / name).is_file()
    assert (folder / "alignments.png").read_bytes().startswith(b"\x89PNG")
    assert ("serves the same ids: True" in result.stdout) == EXPORTS
    assert ("no export" in result.stdout) != EXPORTS
    for name in ("saved_model", "text_model"):
        assert (folder / name / "saved_model.pb").is_file() == EXPORTS


def rates(output):
    """PER, WER and the number of words, by search."""
    return {name: tuple(map(float, numbers)) for name, *numbers in RATES.findall(output)}


@on_tensorflow
def test_quick_learns_cmudict_and_writes_all(quick):
    result, folder = quick
    assert_all_written(result, folder)
    assert "retracing" not in result.stderr
    # The most frequent token, the end of a word, is 13 % of all.
    assert float(re.search(r"token accuracy (\S+)", result.stdout)[1]) > 0.5
    # Untrained it is above 90 %: the most frequent phoneme is less than a tenth of all.
    assert set(rates(result.stdout)) == {"greedy", "beam 5"}
    for phonemes, words, count in rates(result.stdout).values():
        assert phonemes < 70
        assert phonemes < words <= 100
        assert 200 < count <= 300
        assert words * count / 100 == pytest.approx(round(words * count / 100), abs=0.02)


@on_tensorflow
def test_quick_prints_twenty_words_of_which_some_begin_right(quick):
    said = SAID.findall(RATES.sub("", quick[0].stdout))
    assert 15 <= len(said) <= 20
    assert any(right.split()[0] == greedy.split()[0] for _, right, greedy in said if greedy)


@on_tensorflow
def test_the_text_model_answers_in_a_process_that_imports_tensorflow_alone(quick):
    result, folder = quick
    printed = dict(re.findall(r"^text_model: (\S+) -> (.*)$", result.stdout, re.M))
    assert len(printed) >= 4
    words = [*printed, "x\N{SNOWMAN}y", ""]  # a letter it never saw, and no letter at all
    served = run("-c", ONLY_TENSORFLOW, folder / "text_model", *words)
    assert served.returncode == 0, served.stderr
    said, package_is_there = json.loads(served.stdout)
    # All words at once here, one by one there: padding changes nothing.
    assert said[: len(printed)] == list(printed.values())
    assert not package_is_there
    phonemes = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["phonemes"]
    assert {sound for one in said for sound in one.split()} <= set(phonemes)
    assert not any("[end]" in one or "[pad]" in one for one in said)


def test_own_files_are_read_and_their_words_pronounced_on_every_backend(toy):
    result, folder = toy
    assert_all_written(result, folder)
    assert "CMUdict" not in result.stdout
    assert f"{len(WORDS)} to train" in result.stdout
    assert set(rates(result.stdout)) == {"greedy", "beam 2"}
    words = [(word, right) for word, right, _ in SAID.findall(RATES.sub("", result.stdout))]
    assert words == [(word, " ".join(word.upper())) for word in WORDS]


def test_printed_error_rates_are_those_of_the_printed_words(toy):
    """The eight words are all of the test part; counted here by the textbook's recursion."""
    said = SAID.findall(RATES.sub("", toy[0].stdout))
    edits = [distance(right.split(), greedy.split()) for _, right, greedy in said]
    phonemes, words, count = rates(toy[0].stdout)["greedy"]
    assert count == len(WORDS)
    assert phonemes == pytest.approx(100 * sum(edits) / sum(map(len, WORDS)), abs=0.006)
    assert words == pytest.approx(100 * sum(map(bool, edits)) / len(WORDS), abs=0.006)


def distance(right, said):
    if not right or not said:
        return len(right) + len(said)
    rows = list(range(len(said) + 1))
    for i, one in enumerate(right, start=1):
        before, rows[0] = rows[0], i
        for j, other in enumerate(said, start=1):
            best = min(before + (one != other), rows[j] + 1, rows[j - 1] + 1)
            before, rows[j] = rows[j], best
    return rows[-1]


def test_of_several_references_the_nearest_counts_with_its_length(data):
    right = [
        [["R", "EH", "D"], ["R", "IY", "D"]],  # said as the second of them
        [["T", "AH"], ["T", "UW", "M", "EY"]],  # one phoneme wrong in the first: 1 of 2
        [["K", "AE", "T", "S"]],  # one left out: 1 of 4
    ]
    answers = [["R", "IY", "D"], ["T", "OW"], ["K", "AE", "T"]]
    phonemes, words = data.error_rates(answers, right)
    assert phonemes == pytest.approx(100 * (0 + 1 + 1) / (3 + 2 + 4))
    assert words == pytest.approx(100 * 2 / 3)


def test_each_word_is_counted_once_with_all_of_its_pronunciations(data):
    pairs = [("read", ("R", "EH", "D")), ("a", ("AH",)), ("read", ("R", "IY", "D"))]
    expected = {"read": [["R", "EH", "D"], ["R", "IY", "D"]], "a": [["AH"]]}
    assert data.references(pairs) == expected


def test_batches_hold_every_pair_once_shifted_by_one(data):
    pairs = [("ab" * n, ["A"] * n) for n in range(1, 12)]
    letters, phonemes = data.make_vocabulary(["ab"]), data.make_vocabulary([["A"]])
    batches = data.Batches(pairs, letters, phonemes, 3)
    seen = []
    for index in range(len(batches)):
        (source, target_in), target_out = batches[index]
        assert (target_in[:, 0] == data.START).all()
        shifted = target_in[:, 1:]
        following = target_out.argmax(-1)
        assert (following[:, :-1][shifted != 0] == shifted[shifted != 0]).all()
        assert ((following == data.END).sum(axis=1) == 1).all()
        seen += [int(row) for row in (source != 0).sum(axis=1)]
    assert sorted(seen) == [2 * n for n in range(1, 12)]


@pytest.mark.parametrize(
    "line",
    ["ab A B", "ab\t", "\tA B", "ab\tA B\tC", ""],
    ids=["no tab", "no phonemes", "no word", "two tabs", "empty line"],
)
def test_a_malformed_line_is_named(data, tmp_path, line):
    files = toy_files(tmp_path, dev=f"ab\tA B\n{line}\nac\tA C\n")
    with pytest.raises(ValueError, match=r"dev\.tsv, line 2: expected a word, one TAB"):
        data.read_pairs(files[1])


def test_a_malformed_file_ends_the_command_with_a_clear_error(tmp_path):
    files = toy_files(tmp_path, test="")
    result = run(EXAMPLES / "g2p.py", "--data", *files, "--output", tmp_path / "out")
    assert result.returncode == 2
    assert "test.tsv: expected at least one line" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()
