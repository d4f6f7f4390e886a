"""Decides whether the claims of a paper hold, given the noise of the numbers."""
