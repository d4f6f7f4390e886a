"""Estimates what work would cost before it starts: GPU hours, hours on the clock, storage."""
