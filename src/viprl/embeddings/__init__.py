"""Prompt text -> vectors: a sentence encoder or a dependency-free fallback, with a disk cache."""

from viprl.embeddings.encoders import PACKAGED_MODEL, Encoder, SentenceEncoder
from viprl.embeddings.files import load_embeddings, save_embeddings
from viprl.embeddings.hashed import HashedNgrams
from viprl.embeddings.texts import EmbeddingResult, TruncationWarning, embed, embed_with_report

__all__ = [
    "PACKAGED_MODEL",
    "EmbeddingResult",
    "Encoder",
    "HashedNgrams",
    "SentenceEncoder",
    "TruncationWarning",
    "embed",
    "embed_with_report",
    "load_embeddings",
    "save_embeddings",
]
