"""The scheduler: what pods ask for, what nodes have left, where pods go and why they cannot."""
