"""Export: a generator as a file that answers without this package."""

import keras

from keras_attention import checks
from keras_attention.search import RandomSampling

FORMATS = ("tf_saved_model", "litert", "onnx")


def export(model, generator, filepath, format, verbose, input_signature, **kwargs):
    """Writes `generator` in `format`; as a SavedModel, with `model`'s logits beside it."""
    checks.check_choice("Seq2Seq.export", "format", format, FORMATS)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Seq2Seq.export: format={format!r} should be written on the TensorFlow backend, "
            f"but this is {keras.backend.backend()}. Fix: model.save('model.keras') here, "
            "then load and export it with KERAS_BACKEND=tensorflow."
        )
    if format == "tf_saved_model":
        ignored = [*kwargs, *["input_signature"] * (input_signature is not None)]
        if ignored:
            raise ValueError(
                "Seq2Seq.export: a SavedModel should be given `search`, `max_length` and "
                f"`verbose` alone, but received {', '.join(ignored)}. Fix: leave it out; a "
                "SavedModel takes source ids of any batch and length."
            )
        _saved_model(model, generator, filepath, verbose)
        return
    if isinstance(generator.search, RandomSampling):
        raise ValueError(
            f"Seq2Seq.export: {format} should be of a search without random numbers, which it "
            f"cannot carry, but received {generator.search}. Fix: GreedySearch(), or "
            "format='tf_saved_model'."
        )
    shapes = [tuple(one.shape) for one in keras.tree.flatten(input_signature or [])]
    if len(shapes) != 1 or (format == "litert" and None in shapes[0]):
        raise ValueError(
            f"Seq2Seq.export: `input_signature` should state the source's shape (B, S), fixed "
            f"for litert, but received {input_signature!r}. "
            'Fix: input_signature=[keras.InputSpec(shape=(1, 20), dtype="int32")].'
        )
    keras.Model.export(
        generator,
        filepath,
        format=format,
        verbose=verbose,
        input_signature=input_signature,
        **kwargs,
    )


def _saved_model(model, generator, filepath, verbose):
    import tensorflow as tf

    def ids(name):
        return tf.TensorSpec((None, None), "int32", name=name)

    generator.restart()
    archive = keras.export.ExportArchive()
    answer = tf.function(generator.__call__, input_signature=[ids("source")])
    answer.get_concrete_function()  # traced here, once for both of its names
    archive.add_endpoint("generate", answer)
    archive.add_endpoint("serve", answer)
    archive.add_endpoint(
        "logits",
        lambda source, target: model((source, target), training=False),
        [ids("source"), ids("target")],
    )
    archive.write_out(filepath, verbose=verbose)
