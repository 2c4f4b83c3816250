"""The fast form of a model for inference: weights packed for the processor, in bf16 where it holds.

`vitlab.accelerate` makes it. Unlike a compiled model it takes any batch and needs no compiler.
"""
