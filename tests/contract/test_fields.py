"""Fields that the ledger has learnt: in their order, a later type in the place of an earlier one."""

from __future__ import annotations

import pytest

from ledger_examples import take_lease
from oncehouse.errors import FencedError
from oncehouse.ledger.catalog.learned_fields import learn_fields, list_fields
from oncehouse.ledger.models import LearnedField

COUPON = LearnedField(field="coupon", type="Nullable(String)")
PRICE = LearnedField(field="price", type="Int64", instead_of="Int32")
LEFT_OUT = LearnedField(field="debug", type=None)


def listed(catalog) -> list[tuple[str, str | None, str | None]]:
    return [(found.field, found.type, found.instead_of) for found in list_fields(catalog)]


def test_fields_are_listed_in_the_order_in_which_they_came(catalog):
    learn_fields(catalog, [PRICE, COUPON])
    learn_fields(catalog, [LEFT_OUT], token=take_lease(catalog))
    assert listed(catalog) == [
        ("price", "Int64", "Int32"),
        ("coupon", "Nullable(String)", None),
        ("debug", None, None),
    ]
    assert all(found.learned_at > 0 for found in list_fields(catalog))


def test_a_field_learnt_again_keeps_its_place(catalog):
    learn_fields(catalog, [LEFT_OUT, COUPON])
    learn_fields(catalog, [LearnedField(field="debug", type="Nullable(Int64)")])
    assert listed(catalog) == [("debug", "Nullable(Int64)", None), ("coupon", "Nullable(String)", None)]


def test_who_has_lost_the_lease_teaches_nothing(catalog):
    token = take_lease(catalog)
    with pytest.raises(FencedError):
        learn_fields(catalog, [COUPON], token=token - 1)
    assert list_fields(catalog) == ()
