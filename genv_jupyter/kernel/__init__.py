"""`%gpu`: what a kernel, or an IPython in a terminal, has of the product."""
