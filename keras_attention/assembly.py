"""Whether the parts of a `Seq2Seq`, and its tokens, fit together."""

import keras

from keras_attention import token_ids
from keras_attention.decoder import AttentionDecoder


def check_parts(decoder, output_layer, tokens):
    if not isinstance(decoder, AttentionDecoder):
        raise ValueError(
            f"Seq2Seq: `decoder` should be an AttentionDecoder, but received {decoder!r}. "
            "Fix: pass AttentionDecoder(GRUCell(128), BahdanauAttention(128)); mind the "
            "order (source_embedding, encoder, target_embedding, decoder, output_layer)."
        )
    if getattr(output_layer, "activation", None) is keras.activations.softmax:
        raise ValueError(
            "Seq2Seq: `output_layer` should return logits, but its activation is a softmax. "
            "Fix: leave the activation out, and train with a loss of from_logits=True."
        )
    if tokens["start_token"] == tokens["pad_token"]:
        raise ValueError(
            "Seq2Seq: `start_token` should not be `pad_token`, which is masked, but both "
            f"are {tokens['pad_token']}. Fix: an id of its own for the start token."
        )


def check_embeddings(tokens, **embeddings):
    for name, embedding in embeddings.items():
        if tokens["pad_token"] != 0 and getattr(embedding, "mask_zero", False):
            raise ValueError(
                f"Seq2Seq: `{name}` masks id 0, but `pad_token` is {tokens['pad_token']}. "
                "Fix: mask_zero=False, and the model masks `pad_token`; or pad with 0."
            )


def check_apart(name, layer, earlier, other):
    """Layers shared by two parts, but not as the whole part, would be saved as two."""
    mine, theirs = ({id(weight) for weight in one.weights} for one in (layer, other))
    if mine & theirs:
        raise ValueError(
            f"Seq2Seq: `{name}` and `{earlier}` share a layer inside them, and a config "
            "cannot say so. Fix: make one layer, for example the Embedding itself, both "
            "parts; or save_weights, and load_weights into a model built by the same code."
        )


def check_encoded(encoder, encoded):
    if not isinstance(encoded, (list, tuple)) or len(encoded) < 2:
        raise ValueError(
            "Seq2Seq: `encoder` should return memory (B, S, D_v) and a first state, but "
            f"'{encoder.name}' returned a {type(encoded).__name__} and no state. Fix: "
            "BiEncoder(GRU(128)), or GRU(128, return_sequences=True, return_state=True)."
        )


def check_tokens(model):
    """Every token that is fed or returned is one that the layers know."""
    known = token_ids.vocabulary_size(model.target_embedding)
    for name in ("start_token", "pad_token"):
        token_ids.check_ids("Seq2Seq", name, getattr(model, name), known)
    token_ids.check_ids("Seq2Seq", "end_token", model.end_token, model.vocabulary)
    if known is not None and known < model.vocabulary:
        raise ValueError(
            f"Seq2Seq: `target_embedding` should know every id that `output_layer` gives, "
            f"V={model.vocabulary}, since outputs are fed back, but knows {known}. "
            f"Fix: Embedding({model.vocabulary}, ...)."
        )
