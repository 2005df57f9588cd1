"""A Django app: customers place orders, which have lines and tags."""
