"""Makes data sets from other ones: corrupted images, images that a model gets wrong, scenes of garments."""
