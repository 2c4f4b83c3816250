"""Spellings of layers in versions of transformers, and how files spell them."""

from vitlab.weights.formats.records import rules

# How transformers 5 names the parts of a block in memory; files keep the older names as a rule.
ATTENTION = rules(r"""
    attention\.q_proj  attention.attention.query
    attention\.k_proj  attention.attention.key
    attention\.v_proj  attention.attention.value
    attention\.o_proj  attention.output.dense
""")
NEWER = (
    rules(r"^layers\. encoder.layer.")
    | ATTENTION
    | rules(r"""
    mlp\.fc1  intermediate.dense
    mlp\.fc2  output.dense
""")
)
