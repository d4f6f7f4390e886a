"""Reads spoken words and turns them into the spectra that models see."""
