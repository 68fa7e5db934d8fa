"""Recurrent attention for Keras 3: the 2014-2015 papers as reusable layers."""

from keras_attention.attention import BahdanauAttention, LuongAttention
from keras_attention.base import BaseAttention
from keras_attention.beam import BeamSearch, GNMTPenalty
from keras_attention.decoder import AttentionDecoder
from keras_attention.encoder import BiEncoder
from keras_attention.masking import MaskedSoftmax
from keras_attention.search import GreedySearch, RandomSampling
from keras_attention.seq2seq import Generated, Seq2Seq

__version__ = "0.1.0"

__all__ = [
    "AttentionDecoder",
    "BahdanauAttention",
    "BaseAttention",
    "BeamSearch",
    "BiEncoder",
    "GNMTPenalty",
    "Generated",
    "GreedySearch",
    "LuongAttention",
    "MaskedSoftmax",
    "RandomSampling",
    "Seq2Seq",
]
