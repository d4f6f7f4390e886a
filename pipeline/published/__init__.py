"""Results in git that a stranger can check: the metrics of a headline, and all that is drawn from them."""
