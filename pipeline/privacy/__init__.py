"""Attacks gradients and features to recover images: the algorithms; `evals/privacy` measures with them."""
