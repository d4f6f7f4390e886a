"""Measures object detection and segmentation, and draws what was found."""
