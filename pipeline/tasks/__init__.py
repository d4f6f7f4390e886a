"""Says what models are trained for: how a batch is made, what is measured, which metric counts."""
