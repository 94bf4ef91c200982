"""The decoder's shape for tests: small enough to train a few steps on a CPU."""

from handbook.training.checkpoint import DecoderShape

TINY = DecoderShape(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
