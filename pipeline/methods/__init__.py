"""Holds the training methods of the papers, one file for each: what is drawn at random, and the loss."""
