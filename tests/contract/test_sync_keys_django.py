"""Keys of Django models that are not one whole number or UUID, or not that of the row which changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from oncehouse.errors import ConfigurationError, PermanentError
from oncehouse.sync.changes.change import format_key
from oncehouse.sync.model import model_sync as core
from synced_shop import Shop, open_shop

from django.db import connections, models  # isort: skip - after the settings of synced_shop

from oncehouse.sync.django import ModelSync


class Model(models.Model):
    class Meta:
        abstract = True
        app_label = "sync_shop"

    def __str__(self) -> str:
        return str(self.pk)


class Price(Model):
    amount = models.DecimalField(primary_key=True, max_digits=8, decimal_places=2)


class Moment(Model):
    at = models.DateTimeField(primary_key=True)


class Book(Model):
    book_id = models.AutoField(primary_key=True)
    title = models.CharField(max_length=10)


class Article(Model):
    article_id = models.AutoField(primary_key=True)
    headline = models.CharField(max_length=10)


class Review(Book, Article):
    """Its key is the book's, and its article has another one."""

    stars = models.IntegerField(default=0)


class City(Model):
    code = models.CharField(max_length=3, unique=True)
    streets = models.ManyToManyField("Street", through="Way")


class Street(Model):
    city = models.ForeignKey(City, models.CASCADE, to_field="code")
    book = models.ForeignKey(Book, models.CASCADE)


class Way(Model):
    city = models.ForeignKey(City, models.CASCADE, to_field="code")
    street = models.ForeignKey(Street, models.CASCADE)


@pytest.fixture
def shop(catalog_url) -> Iterator[Shop]:
    with open_shop(catalog_url, {"db_url": "http://localhost:1"}) as shop:
        with connections[shop.alias].schema_editor() as editor:
            for model in (Price, Moment, Book, Article, Review):
                editor.create_model(model)
        yield shop


@contextmanager
def synced(shop: Shop, model: Any, **attributes: Any) -> Iterator[type[ModelSync]]:
    """A sync of this model, until the block ends."""
    known = list(core._registered)
    own = {"django_model": model, "sync_enabled": True, "source_database": shop.alias, **attributes}
    yield type(f"{model.__name__}Sync", (ModelSync,), {**own, "__module__": __name__})
    core._registered[:] = known


def waiting(shop: Shop, sync: type[ModelSync]) -> set[str]:
    found = {key for _kind, key in shop.waiting(sync)}
    shop.forget_waiting()
    return found


def test_a_decimal_is_one_key_however_many_places_it_is_given_with(shop):
    with synced(shop, Price) as sync:
        Price.objects.using(shop.alias).create(amount=Decimal("1.5"))
        stored = {format_key(row) for row in Price.objects.using(shop.alias).values_list("amount")}
        assert waiting(shop, sync) == stored
        sync.register([Decimal("1.5"), "1.500", Decimal("1.50")])
        assert waiting(shop, sync) == stored
        assert sync.parse_key('["1.5"]') == (Decimal("1.50"),)


def test_a_moment_is_one_key_in_whichever_zone_it_is_given(shop):
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    later = noon.astimezone(timezone(timedelta(hours=2)))
    with synced(shop, Moment) as sync:
        Moment.objects.using(shop.alias).create(at=later)
        stored = {format_key(row) for row in Moment.objects.using(shop.alias).values_list("at")}
        assert waiting(shop, sync) == stored
        sync.register([noon, later, later.isoformat()])
        assert waiting(shop, sync) == stored


def test_what_is_no_key_is_refused_with_the_keys_name(shop):
    with synced(shop, Book) as sync:
        for given in ("x", (1, 2), object()):
            with pytest.raises(PermanentError, match=r"is no key of Book, whose key is \(book_id\)"):
                sync.register([given])


def test_a_change_of_any_parent_is_told_under_the_childs_own_key(shop):
    Article.objects.using(shop.alias).bulk_create([Article(headline="a"), Article(headline="b")])
    with synced(shop, Review) as sync:
        review = Review.objects.using(shop.alias).create(title="t", headline="h")
        assert review.article_id != review.pk
        assert waiting(shop, sync) == {format_key([review.pk])}
        Article.objects.using(shop.alias).filter(headline="h").update(headline="i")
        assert waiting(shop, sync) == {format_key([review.pk])}
        Book.objects.using(shop.alias).update(title="u")
        assert waiting(shop, sync) == {format_key([review.pk])}
        Article.objects.using(shop.alias).filter(headline="a").update(headline="z")
        assert waiting(shop, sync) == set()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("city", r"'city' of sync_shop\.Street holds code, which is not the primary key"),
        ("book", r"'book' of sync_shop\.Street is a foreign key to sync_shop\.Book"),
        ("id", "is no foreign key"),
        ("nothing", "is no foreign key"),
    ],
)
def test_a_watched_field_that_does_not_hold_the_key_is_refused(shop, name, told):
    with (
        synced(shop, City, columns={"streets": None}, watch={Street: name}),
        pytest.raises(ConfigurationError, match=told),
    ):
        Book.objects.using(shop.alias).create(title="t")


def test_many_to_many_whose_links_hold_another_field_cannot_be_a_column(shop):
    with synced(shop, City) as sync, pytest.raises(ConfigurationError, match=r"'streets': None"):
        sync.model_columns()
