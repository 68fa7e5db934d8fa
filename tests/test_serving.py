"""Exported models answer what `generate` does, in processes without this package."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention import BeamSearch, GreedySearch, RandomSampling
from seq2seqs import LENGTH, SOURCE, library_seq2seq, seq2seq

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the export is TensorFlow's"
)
SIGNATURE = [keras.InputSpec(shape=SOURCE.shape, dtype="int32")]


def fresh(code, *arguments):
    """Runs code in a process of its own, which has not imported Keras."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


SERVED = """
import sys
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
given = np.load(folder + "/given.npz")
served = tf.saved_model.load(folder + "/model")
for name, source in given.items():
    np.savez(f"{folder}/{name}.npz", **served.generate(source))
logits = served.logits(given["whole"], np.ones((3, 4), "int32"))
np.savez(folder + "/logits.npz", logits=logits)
assert {"generate", "serve", "logits"} <= set(dir(served))
assert "serving_default" in served.signatures
assert "keras_attention" not in sys.modules
"""


@on_tensorflow
@pytest.mark.parametrize(
    "search",
    [GreedySearch(), BeamSearch(3, n_best=2, coverage_penalty=0.1, no_repeat_ngram=2)],
    ids=lambda search: type(search).__name__,
)
def test_a_saved_model_needs_tensorflow_alone(search, tmp_path):
    model = seq2seq(eager=False)
    wanted = model.generate(SOURCE, search, LENGTH, verbose=0)
    model.export(tmp_path / "model", search=search, max_length=LENGTH, verbose=False)
    given = {
        "whole": SOURCE,
        "padded": np.pad(SOURCE, ((0, 0), (2, 4))),
        "single": SOURCE[1:2, :2],
    }
    np.savez(tmp_path / "given.npz", **given)
    fresh(SERVED, tmp_path)
    shown = {"whole": np.s_[:], "padded": np.s_[2:-4], "single": np.s_[:]}
    for name in given:
        rows = slice(1, 2) if name == "single" else slice(None)
        with np.load(tmp_path / f"{name}.npz") as found:
            for key in ("tokens", "lengths"):
                np.testing.assert_array_equal(found[key], getattr(wanted, key)[rows])
            np.testing.assert_allclose(found["scores"], wanted.scores[rows], atol=1e-5)
            steps = slice(0, 2) if name == "single" else slice(None)
            np.testing.assert_allclose(
                found["weights"][..., shown[name]], wanted.weights[rows][..., steps], atol=1e-5
            )
    with np.load(tmp_path / "logits.npz") as found:
        wanted = model((SOURCE, np.ones((3, 4), "int32")))
        np.testing.assert_allclose(found["logits"], wanted, atol=1e-5)


@on_tensorflow
def test_a_sampling_model_is_served_and_goes_on_drawing(tmp_path):
    import tensorflow as tf

    model = seq2seq(scale=0.1, end_bias=-9.0)
    search = RandomSampling(seed=3)
    first = model.generate(SOURCE, search, LENGTH, verbose=0)
    model.export(tmp_path / "model", search=search, max_length=LENGTH, verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_array_equal(served.generate(SOURCE)["tokens"], first.tokens)
    assert (served.generate(SOURCE)["tokens"].numpy() != first.tokens).any()


LITERT = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter

folder = sys.argv[1]
runner = Interpreter(folder + "/model.tflite").get_signature_runner()
(name,) = runner.get_input_details()
np.savez(folder + "/found.npz", **runner(**{name: np.load(folder + "/source.npy")}))
assert not {"keras", "keras_attention", "tensorflow"} & set(sys.modules)
"""

ONNX = """
import sys
import numpy as np
import onnxruntime

folder = sys.argv[1]
session = onnxruntime.InferenceSession(folder + "/model.onnx")
names = [one.name for one in session.get_outputs()]
given = {session.get_inputs()[0].name: np.load(folder + "/source.npy")}
found = dict(zip(names, session.run(None, given), strict=True))
np.savez(folder + "/found.npz", **found)
assert not {"keras", "keras_attention", "tensorflow"} & set(sys.modules)
"""


# Where nothing is real, weights are 0 in every format.
WITH_AN_EMPTY_ROW = np.concatenate([SOURCE[:2], np.zeros_like(SOURCE[:1])])


def assert_answers(code, folder, wanted):
    np.save(folder / "source.npy", WITH_AN_EMPTY_ROW)
    fresh(code, folder)
    with np.load(folder / "found.npz") as found:
        for key in ("tokens", "lengths"):
            np.testing.assert_array_equal(found[key], getattr(wanted, key))
        for key in ("scores", "weights"):
            np.testing.assert_allclose(found[key], getattr(wanted, key), atol=1e-4)


@on_tensorflow
@pytest.mark.parametrize(
    "search", [GreedySearch(no_repeat_ngram=2), BeamSearch(3, n_best=2)], ids=["greedy", "beam"]
)
def test_litert_answers_the_same_ids(search, tmp_path):
    pytest.importorskip("ai_edge_litert")
    model = seq2seq(eager=False)
    wanted = model.generate(WITH_AN_EMPTY_ROW, search, LENGTH, verbose=0)
    settings = {"format": "litert", "search": search, "max_length": LENGTH, "verbose": False}
    path = tmp_path / "model.tflite"
    model.export(path, input_signature=SIGNATURE, **settings)
    assert_answers(LITERT, tmp_path, wanted)
    with pytest.raises(ValueError, match=r"`input_signature`.*fixed.*Fix"):
        model.export(path, **settings)
    loose = [keras.InputSpec(shape=(None, 5), dtype="int32")]
    with pytest.raises(ValueError, match=r"`input_signature`.*fixed.*Fix"):
        model.export(path, input_signature=loose, **settings)


@on_tensorflow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # tf2onnx, about NumPy
@pytest.mark.parametrize(
    ("search", "decoder"),
    [(GreedySearch(no_repeat_ngram=2), ("heads", "gru", "feeding")), (BeamSearch(2), ())],
    ids=["greedy", "beam"],
)
def test_onnx_answers_the_same_ids(search, decoder, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = seq2seq(*decoder, eager=False)
    wanted = model.generate(WITH_AN_EMPTY_ROW, search, LENGTH, verbose=0)
    loose = [keras.InputSpec(shape=(None, None), dtype="int32")]
    model.export(
        tmp_path / "model.onnx",
        format="onnx",
        search=search,
        max_length=LENGTH,
        input_signature=loose,
        verbose=False,
    )
    assert_answers(ONNX, tmp_path, wanted)


def test_what_cannot_be_exported_says_what_to_do(tmp_path):
    model = library_seq2seq()
    with pytest.raises(ValueError, match="`max_length`.*Fix"):
        model.export(tmp_path / "model")
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(ValueError, match="without random numbers.*Fix"):
            model.export("model.tflite", "litert", search=RandomSampling(), max_length=3)
        with pytest.raises(ValueError, match="received serach.*Fix"):
            model.export(tmp_path / "model", serach=BeamSearch(2), max_length=3)
    with pytest.raises(ValueError, match="`format` should be one of.*Fix"):
        model.export(tmp_path / "model", format="h5", max_length=3)
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(ValueError, match="TensorFlow.*Fix: model.save"):
            model.export(tmp_path / "model", max_length=3)
