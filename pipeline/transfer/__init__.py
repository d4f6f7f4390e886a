"""Holds the parts of detectors and segmenters that encoders are transferred to."""
