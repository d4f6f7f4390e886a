"""Lets several processes train one model: gradients, batch norm, waiting for each other."""
