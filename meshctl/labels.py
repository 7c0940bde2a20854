"""The labels of tokens."""

IGNORED = -100
"""The label of a token that no loss uses, as in torch and transformers."""
