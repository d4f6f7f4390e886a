"""Reads pictures with objects or with a class for each pixel, and makes views of them."""
