"""Reads data sets and turns their samples into batches: images, sounds, texts, objects, classes of pixels."""
