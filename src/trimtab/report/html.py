"""A diagnosis as one page of HTML."""
