"""Evaluates and attacks a model or an image that you name on the command line, without a study."""
