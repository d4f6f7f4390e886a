"""Detects and segments: heads, pyramids, boxes and masks, AP and mIoU, for encoders from any run."""
