"""Reports what is finished, stale or damaged and where a number comes from; cleans up and merges results."""
