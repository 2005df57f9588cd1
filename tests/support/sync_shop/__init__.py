"""A Django app for the tests of model sync: orders, customers, tags, soft deletes."""
