"""Says what models are trained for: how a batch is made, what is measured; losses are in `methods`."""
