"""Reads studies (papers as data), resolves them into runs and jobs, and judges their claims."""
