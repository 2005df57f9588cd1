from __future__ import annotations

from django.db import models


class Customer(models.Model):
    name = models.CharField(max_length=100)
    email = models.EmailField(unique=True)
    country = models.CharField(max_length=2)

    def __str__(self) -> str:
        return self.name


class Tag(models.Model):
    name = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    customer = models.ForeignKey(Customer, models.CASCADE, related_name="orders")
    tags = models.ManyToManyField(Tag, related_name="orders")
    placed_at = models.DateTimeField()
    status = models.CharField(max_length=10, default="open")
    note = models.TextField(default="")
    removed = models.BooleanField(default=False)  # a soft delete: the row stays, and nobody counts it

    def __str__(self) -> str:
        return f"order {self.pk}"


class Line(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    product = models.CharField(max_length=50)
    quantity = models.PositiveIntegerField()
    price = models.DecimalField(max_digits=9, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.quantity} of {self.product}"
