from __future__ import annotations

import uuid

import django
from django.db import models

HAS_COMPOSITE_KEYS = django.VERSION >= (5, 2)


class Customer(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=100)
    vip = models.BooleanField(default=False)
    born = models.DateField(null=True)

    def __str__(self) -> str:
        return self.name


class Tag(models.Model):
    name = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.name


class LiveOrders(models.Manager):
    """The manager that the program uses, which does not see all rows."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().filter(removed=False)


class Order(models.Model):
    customer = models.ForeignKey(Customer, models.CASCADE, related_name="orders")
    tags = models.ManyToManyField(Tag)
    total = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    placed_at = models.DateTimeField(auto_now_add=True)
    note = models.TextField(null=True)  # noqa: DJ001 - nulls are to be synced
    details = models.JSONField(default=dict)
    took = models.DurationField(null=True)
    removed = models.BooleanField(default=False)

    objects = LiveOrders()

    class Meta:
        base_manager_name = None

    def __str__(self) -> str:
        return f"order {self.pk}"


class GiftOrder(Order):
    greeting = models.CharField(max_length=50)


class Line(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines", null=True)
    amount = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.amount} of {self.order_id}"


class Seat(models.Model):
    if HAS_COMPOSITE_KEYS:
        pk = models.CompositePrimaryKey("hall", "number")
    hall = models.CharField(max_length=10)
    number = models.IntegerField()
    taken = models.BooleanField(default=False)

    class Meta:
        unique_together = () if HAS_COMPOSITE_KEYS else ("hall", "number")

    def __str__(self) -> str:
        return f"{self.hall} {self.number}"


ALL = [Customer, Tag, Order, GiftOrder, Line, Seat]
