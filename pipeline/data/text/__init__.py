"""Turns texts into tokens, for classification and for modelling language."""
