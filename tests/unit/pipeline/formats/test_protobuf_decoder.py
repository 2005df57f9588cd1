"""Messages become rows with exactly the values that the protobuf library sees in them."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest
from google.protobuf import json_format

from oncehouse.column_types.parser import parse_type
from oncehouse.errors import ConfigurationError
from oncehouse.pipeline.formats.protobuf.decoder import ProtobufFormat
from oncehouse.pipeline.formats.wire_prefix import VersionPlace, VersionSource
from oncehouse.protobuf.definition import describe
from oncehouse.protobuf.fields import check_fields
from protobuf_examples import (
    ONE,
    Envelope,
    block,
    column,
    definition,
    derived,
    everything,
    make_decoder,
    message_class,
    only,
    read,
    reasons,
    schema,
)

UTC = dt.UTC
INTEGER_EDGES = {
    "i32": (-(2**31), 2**31 - 1), "s32": (-(2**31), 2**31 - 1), "sf32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1), "s64": (-(2**63), 2**63 - 1), "sf64": (-(2**63), 2**63 - 1),
    "u32": (0, 2**32 - 1), "f32": (0, 2**32 - 1), "u64": (0, 2**64 - 1), "f64": (0, 2**64 - 1),
}  # fmt: skip


def make(**given):
    return everything()(**given)


# -- scalars ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", INTEGER_EDGES)
def test_integers_reach_their_limits(field):
    least, greatest = INTEGER_EDGES[field]
    values = [least, greatest, 0]
    assert only(field, derived()[field], *(make(**{field: value}) for value in values)) == values


def test_an_integer_that_the_declared_type_cannot_hold_is_a_dead_letter():
    decoded = read([make(i64=127), make(i64=128)], {"i64": "Int8"})
    assert column(decoded, "i64") == [127]
    assert reasons(decoded) == [(1, "out_of_range", "field i64: outside of Int8")]


def test_floats_keep_nan_infinities_and_the_sign_of_zero():
    nan, *rest = only("db", "Float64", *(make(db=value) for value in (math.nan, math.inf, -math.inf, -0.0)))
    assert math.isnan(nan)
    assert rest[:2] == [math.inf, -math.inf]
    assert math.copysign(1, rest[2]) == -1
    assert only("fl", "Float32", make(fl=-math.inf), make(fl=0.5)) == [-math.inf, 0.5]


def test_texts_hold_all_of_unicode_and_bytes_hold_anything():
    texts = ["", "\0", "ß", "\U0010ffff", "\u202e"]
    assert only("s", "String", *(make(s=text) for text in texts)) == texts
    assert only("y", "String", make(y=b"\xff\x00"), make()) == [b"\xff\x00", ""]
    assert only("y", "FixedString(2)", make(y=b"\xff")) == [b"\xff\x00"]
    assert only("y", "UUID", make(y=bytes(range(16)))) == [bytes(range(16))]


def test_an_enum_is_its_name_or_its_number():
    messages = [make(c=1), make(), make(c=77)]
    assert only("c", "LowCardinality(String)", *messages) == ["RED", "NONE", "77"]
    assert only("c", "Int32", *messages) == [1, 0, 77]
    decoded = read(messages, {"c": "Enum8('NONE' = 0, 'RED' = 1, 'BLUE' = 5)"})
    assert column(decoded, "c") == ["RED", "NONE"]
    assert [found[:2] for found in reasons(decoded)] == [(2, "out_of_range")]


# -- presence ---------------------------------------------------------------------------------------------


def test_absent_differs_from_default_only_where_the_schema_knows_presence():
    messages = [make(), make(oi=0), make(oi=5)]
    assert only("oi", "Nullable(Int32)", *messages) == [None, 0, 5]
    assert only("oi", "Int32", *messages) == [0, 0, 5]
    assert only("i32", "Nullable(Int32)", make(), make(i32=5)) == [0, 5]


def test_wrappers_are_their_value_or_null():
    message = make()
    message.w64.SetInParent()
    other = make()
    other.w64.value = 5
    assert only("w64", "Nullable(Int64)", make(), message, other) == [None, 0, 5]
    decoded = read([make(), other], {"w64": "Int64"})
    assert column(decoded, "w64") == [5]
    assert reasons(decoded) == [(0, "missing_field", "field w64: missing or null, Int64 needs a value")]


def test_proto2_defaults_count_where_null_cannot_stand():
    legacy = message_class("legacy.proto", "legacy.Legacy")
    given = {"schemas": [schema("1", "legacy.proto", "legacy.Legacy")]}
    messages = [legacy(id=1), legacy(id=2, size=7, level=1, note="")]
    assert only("size", "Int32", *messages, **given) == [42, 7]
    assert only("size", "Nullable(Int32)", *messages, **given) == [None, 7]
    assert only("level", "String", *messages, **given) == ["HIGH", "LOW"]
    assert only("note", "String", *messages, **given) == ["none", ""]


def test_packed_and_unpacked_are_read_alike_and_groups_are_passed_over():
    legacy = message_class("legacy.proto", "legacy.Legacy")
    given = {"schemas": [schema("1", "legacy.proto", "legacy.Legacy")]}
    message = legacy(id=1, plain=[1, 2], dense=[3, 4])
    message.box.side = 5
    assert only("plain", "Array(Int32)", message, **given) == [[1, 2]]
    assert only("dense", "Array(Int32)", message, b"\x08\x01\x30\x07\x30\x08", **given) == [[3, 4], [7, 8]]


# -- nested -----------------------------------------------------------------------------------------------


def test_a_path_leads_through_nested_messages():
    messages = [make(inner={"id": 7, "name": "x"}), make()]
    assert only("inner.id", "Int64", *messages) == [7, 0]
    assert only("inner.name", "Nullable(String)", *messages, make(inner={})) == ["x", None, ""]


def test_a_nested_message_is_a_tuple_with_defaults_where_it_is_absent():
    messages = [make(inner={"id": 7}), make()]
    assert only("inner", "Tuple(name String, id Int64)", *messages) == [
        {"name": "", "id": 7},
        {"name": "", "id": 0},
    ]
    nullable = "Tuple(id Nullable(Int64))"
    assert only("inner", nullable, *messages, make(inner={})) == [{"id": 7}, {"id": None}, {"id": 0}]
    assert only("rm", "Array(Tuple(id Int64))", make(rm=[{"id": 1}, {}])) == [[{"id": 1}, {"id": 0}]]


def test_any_message_can_be_one_text_of_json():
    assert only("inner", "Nullable(String)", make(inner={"id": 7}), make()) == ['{"id":"7"}', None]
    assert only("rm", "Array(String)", make(rm=[{"id": 1}, {}])) == [['{"id":"1"}', "{}"]]


def test_repeated_fields_are_arrays():
    assert only("ri", "Array(Int32)", make(ri=[1, -2]), make()) == [[1, -2], []]
    assert only("rc", "Array(String)", make(rc=[1, 0, 9])) == [["RED", "NONE", "9"]]
    assert only("rs", "Array(String)", make(rs=["", "ß"])) == [["", "ß"]]


def test_maps_keep_every_pair_and_know_missing_values():
    assert dict(only("msi", "Map(String, Int32)", make(msi={"a": 1, "": 0}))[0]) == {"a": 1, "": 0}
    nested = make()
    nested.mim[7].name = "x"
    assert only("mim", "Map(Int32, Tuple(id Int64, name String))", nested) == [[(7, {"id": 0, "name": "x"})]]
    # An entry without key, one without value, one without both.
    assert only("msi", "Map(String, Int32)", b"\xca\x01\x02\x10\x07") == [[("", 7)]]
    assert only("mim", "Map(Int32, Tuple(id Int64))", b"\xd2\x01\x02\x08\x07") == [[(7, {"id": 0})]]
    assert only("msi", "Map(String, Int32)", b"\xca\x01\x00") == [[("", 0)]]


def test_a_key_twice_in_a_map_means_the_last():
    twice = b"\xca\x01\x05\x0a\x01a\x10\x01" + b"\xca\x01\x05\x0a\x01a\x10\x02"
    assert everything().FromString(twice).msi == {"a": 2}
    assert only("msi", "Map(String, Int32)", make(msi={"b": 5}), twice) == [[("b", 5)], [("a", 2)]]


def test_the_last_member_of_a_oneof_counts_and_its_name_can_be_asked_for():
    oa_then_ob = make(oa=1).SerializeToString() + make(ob="x").SerializeToString()
    messages = [make(oa=0), make(om={"id": 5}), make(), oa_then_ob]
    assert only("one", "Nullable(String)", *messages) == ["oa", "om", None, "ob"]
    assert only("oa", "Nullable(Int32)", *messages) == [0, None, None, None]
    assert only("om.id", "Nullable(Int64)", *messages) == [None, 5, None, None]


def test_a_message_twice_is_merged():
    halves = make(inner={"id": 7}).SerializeToString() + make(inner={"name": "x"}).SerializeToString()
    assert only("inner", "Tuple(id Int64, name String)", halves) == [{"id": 7, "name": "x"}]


# -- well-known types -------------------------------------------------------------------------------------


def at(text):
    message = make()
    message.ts.FromJsonString(text)
    return message


def test_timestamps_keep_their_moment_up_to_where_clickhouse_ends():
    years = [
        "1970-01-01T00:00:00Z",
        "1900-01-01T00:00:00Z",
        "2262-04-12T00:00:00Z",
        "2299-12-31T23:59:59.999999Z",
    ]
    expected = [dt.datetime.fromisoformat(year) for year in years]
    assert only("ts", "DateTime64(6)", *map(at, years)) == expected
    decoded = read([at("1899-12-31T23:59:59Z"), at("2300-01-01T00:00:00Z"), make()], {"ts": "DateTime64(6)"})
    assert [found[1] for found in reasons(decoded)] == ["out_of_range", "out_of_range", "missing_field"]
    assert only("ts", "Nullable(DateTime)", make(), at("1970-01-01T00:00:01.9Z")) == [
        None, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    ]  # fmt: skip


def test_nanoseconds_are_kept_where_the_column_has_them():
    array = read([at("2024-01-01T00:00:00.123456789Z")], {"ts": "DateTime64(9)"}).rows.column("ts")
    assert array.view(pa.int64()).to_pylist() == [1704067200123456789]


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(0, -1), (0, 10**9), (2**62, 0), (-(2**63), 0), (2**63 - 1, 5)]
)
def test_what_is_no_timestamp_is_a_dead_letter(seconds, nanos):
    message = make(ts={"seconds": seconds, "nanos": nanos})
    for declared in ("DateTime", "DateTime64(3)", "DateTime64(9)", "Date32"):
        assert [found[1] for found in reasons(read([message], {"ts": declared}))] == ["out_of_range"]


def test_durations_are_seconds_as_decimals_and_nanoseconds_as_integers():
    message = make(du={"seconds": -315_576_000_000, "nanos": -999_999_999})
    assert only("du", "Decimal(21, 9)", message) == [decimal.Decimal("-315576000000.999999999")]
    assert only("du", "Int128", message) == [(-315576000000999999999).to_bytes(16, "little", signed=True)]
    assert [found[1] for found in reasons(read([message], {"du": "Int64"}))] == ["out_of_range"]
    assert only("du", "Nullable(Int64)", make(du={"seconds": 1, "nanos": 5}), make()) == [1_000_000_005, None]


def test_struct_value_and_any_become_json():
    message = make()
    message.st.update({"a": [True, None, {"b": "ß"}]})
    message.va.string_value = "x"
    message.any.Pack(make(i32=5))
    assert only("st", "Nullable(String)", message, make()) == ['{"a":[true,null,{"b":"ß"}]}', None]
    assert only("va", "String", message) == ['"x"']
    assert only("any", "String", message) == ['{"@type":"type.googleapis.com/everything.Everything","i32":5}']
    unknown = make(any={"type_url": "x/unknown.Type", "value": b"\x01"})
    assert only("any", "String", unknown) == ['{"@type":"x/unknown.Type","value":"AQ=="}']


def test_what_cannot_be_json_is_a_dead_letter():
    message = make()
    message.va.number_value = math.nan
    decoded = read([make(), message], {"va": "Nullable(String)"})
    assert column(decoded, "va") == [None]
    assert reasons(decoded) == [(1, "malformed", "everything.Everything.va cannot be written as JSON")]


# -- bad messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x08\xff", "malformed"),
        (b"\x72\x05ab", "malformed"),
        (b"\x72\x02\xff\xfe", "bad_utf8"),
        (b"\x00\x01", "malformed"),
        (b"\x0e\x01", "malformed"),
        (b"\x08" + b"\xff" * 11, "malformed"),
        (b"\x8a\x01\x02\x08\xff", "malformed"),
    ],
)
def test_a_bad_message_costs_only_itself(message, reason):
    decoded = read([make(i32=1), message, make(i32=2)])
    assert column(decoded, "i32") == [1, 2]
    assert decoded.taken.tolist() == [0, 2]
    assert [found[:2] for found in reasons(decoded)] == [(1, reason)]


def test_bad_messages_are_found_among_thousands():
    messages = [make(i32=row).SerializeToString() for row in range(5000)]
    bad = [0, 17, 18, 2500, 4999]
    for row in bad:
        messages[row] = b"\x08\xff"
    decoded = make_decoder({"i32": "Int32"}).decode(block(messages))
    assert [found.index for found in decoded.rejected] == bad
    assert column(decoded, "i32") == decoded.taken.tolist() == [row for row in range(5000) if row not in bad]


def test_an_empty_message_is_a_row_and_a_missing_one_is_skipped():
    decoded = read([b"", None, make(i32=5)], {"i32": "Int32"})
    assert column(decoded, "i32") == [0, 5]
    assert decoded.skipped.tolist() == [1]


def test_a_message_beyond_the_limit_is_a_dead_letter():
    decoded = read([make(s="x" * 100), make(s="y")], {"s": "String"}, max_message_bytes=50)
    assert [found[:2] for found in reasons(decoded)] == [(0, "too_big")]
    assert column(decoded, "s") == ["y"]


def test_fields_nobody_asked_for_are_passed_over_whatever_they_hold():
    assert only("i32", "Int32", b"\x08\x05" + b"\x72\x02\xff\xfe" + b"\xc0\x3e\x01") == [5]


# -- versions ---------------------------------------------------------------------------------------------

ORDERS = [schema(str(number), f"order_v{number}.proto", "shop.Order") for number in (1, 2, 3)]
ORDER_FIELDS = {
    "id": "Int64",
    "product": "Nullable(String)",
    "amount": "UInt32",
    "status": "LowCardinality(String)",
    "buyer.name": "String",
    "at": "Nullable(DateTime64(3))",
}


def order(version, **given):
    return message_class(f"order_v{version}.proto", "shop.Order")(**given).SerializeToString()


def test_fields_that_a_version_lacks_are_null_or_protobufs_default():
    decoder = make_decoder(ORDER_FIELDS, ORDERS, header_format())
    messages = [order(1, id=1, product="x"), order(2, id=2, amount=5, status=1), order(3, id=3, status=2)]
    decoded = decoder.decode(block(messages, [[("v", b"1")], [("v", b"2")], [("v", b"3")]]))
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [
        (1, "x", 0, "UNKNOWN", "", None),
        (2, "", 5, "PAID", "", None),
        (3, None, 0, "SENT", "", None),
    ]
    assert decoded.schemas.to_pylist() == ["1", "2", "3"]


def test_a_version_with_none_of_the_declared_fields_still_makes_rows():
    schemas = [*ORDERS, schema("5", "order_v5.proto", "shop.Order")]
    decoder = make_decoder({"note": "String"}, schemas, header_format())
    headers = [[("v", b"1")], [("v", b"5")], [("v", b"1")]]
    decoded = decoder.decode(block([order(1, id=1), order(5, note="x"), b"\x08\xff"], headers))
    assert column(decoded, "note") == ["", "x"]
    assert [found[:2] for found in reasons(decoded)] == [(2, "malformed")]


def header_format(default=""):
    return ProtobufFormat(version_source=VersionSource(place=VersionPlace.HEADER, header="v", schema=default))


def test_a_version_stands_in_a_header_and_an_unknown_one_waits():
    decoder = make_decoder({"id": "Int64"}, ORDERS, header_format())
    headers = [[("v", b"4"), ("v", b"1")], [("v", b"4")], [], [("v", b"\xff")], [("x", b"1")]]
    decoded = decoder.decode(block([order(1, id=row) for row in range(5)], headers))
    assert column(decoded, "id") == [0]
    assert [(waiting.index, waiting.schema) for waiting in decoded.waiting] == [(1, "4")]
    assert [found[:2] for found in reasons(decoded)] == [(row, "malformed") for row in (2, 3, 4)]


def test_records_without_a_header_can_have_a_version_by_default():
    decoder = make_decoder({"id": "Int64"}, ORDERS, header_format(default="1"))
    decoded = decoder.decode(block([order(1, id=7), order(1, id=8)], [[], None]))
    assert decoded.schemas.to_pylist() == ["1", "1"]
    assert column(decoded, "id") == [7, 8]


def test_records_that_were_read_before_keep_their_schema_where_none_is_named():
    """As when the one schema has been replaced, and the ledger is read again."""
    decoder = make_decoder({"id": "Int64", "amount": "UInt32"}, ORDERS, ONE)
    values = [order(3, id=1, amount=5), order(3, id=2, amount=5)]
    again = block(values).append_column("schema", pa.array(["3", None], pa.string()))
    decoded = decoder.decode(again)
    assert decoded.schemas.to_pylist() == ["3", "1"]
    assert column(decoded, "amount") == [5, 0]


def zigzag(number):
    value, out = number << 1 if number >= 0 else -(number << 1) - 1, b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def prefixed(number, indexes, body):
    path = b"\0" if indexes == [0] else zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
    return b"\0" + number.to_bytes(4, "big") + path + body


def test_a_registrys_prefix_names_schema_and_message():
    schemas = [
        schema("7", "order_v3.proto", "shop.Order"),
        schema("7:1", "order_v4.proto", "shop.Order4"),
        schema("300:1.0", "order_v4.proto", "shop.Other.Inner"),
    ]
    decoder = make_decoder(
        {"id": "Int64"}, schemas, ProtobufFormat(version_source=VersionSource(place=VersionPlace.PREFIX))
    )
    inner = message_class("order_v4.proto", "shop.Other.Inner")(id=9).SerializeToString()
    values = [
        prefixed(7, [0], order(3, id=1)),
        b"\0\0\0\0\x07\x02\x00" + order(3, id=2),  # the first message, spelt out
        prefixed(300, [1, 0], inner),
        prefixed(300, [1, 200], inner),
        prefixed(7, [1], b""),
        prefixed(70000, [0], b""),
        b"\x01\0\0\0\x07\0",
        b"\0\0\0\0",
        b"\0\0\0\0\x07",
        b"\0\0\0\0\x07\x06\x00",
        b"\0\0\0\0\x07\x01",
        b"\0\0\0\0\x07\x80\x80\x80\x80\x80\x80\x01",
        b"",
    ]
    decoded = decoder.decode(block(values))
    assert decoded.taken.tolist() == [0, 1, 2, 4]
    assert column(decoded, "id") == [1, 2, 9, 0]
    assert decoded.schemas.to_pylist() == ["7", "7", "300:1.0", "7:1"]
    assert [(waiting.index, waiting.schema) for waiting in decoded.waiting] == [
        (3, "300:1.200"),
        (5, "70000"),
    ]
    assert [found[:2] for found in reasons(decoded)] == [(row, "malformed") for row in range(6, 13)]


def enveloped(version, body, **given):
    return message_class("envelope.proto", "shop.Envelope")(version=version, body=body, **given)


def envelope_format(body):
    text = definition("envelope.proto", "shop.Envelope").to_text()
    return ProtobufFormat(
        version_source=VersionSource(place=VersionPlace.NONE),
        envelope=Envelope(definition=text, field="version", body=body),
    )


def test_a_version_stands_in_a_field_of_an_envelope_and_the_message_inside_it():
    decoder = make_decoder({"id": "Int64"}, ORDERS, envelope_format("body"))
    messages = [
        enveloped(1, order(1, id=1)),
        enveloped(4, order(1, id=2)),
        enveloped(3, b"\x08\xff"),
        enveloped(2, b""),
    ]
    values = [message.SerializeToString() for message in messages]
    decoded = decoder.decode(block([*values, b"\x08\xff", None]))
    assert column(decoded, "id") == [1, 0]
    assert [(waiting.index, waiting.schema) for waiting in decoded.waiting] == [(1, "4")]
    assert [found[:2] for found in reasons(decoded)] == [(2, "malformed"), (4, "malformed")]
    assert decoded.skipped.tolist() == [5]


def test_a_version_stands_in_a_field_that_all_versions_share():
    text = definition("envelope.proto", "shop.Envelope").to_text()
    shared = Envelope(definition=text, field="tag", body=None)
    schemas = [schema("a", "envelope.proto", "shop.Envelope")]
    decoder = make_decoder(
        {"version": "Int64"},
        schemas,
        ProtobufFormat(version_source=VersionSource(place=VersionPlace.NONE), envelope=shared),
    )
    values = [enveloped(5, b"", tag="a"), enveloped(6, b"", tag="b"), enveloped(7, b"")]
    decoded = decoder.decode(block([value.SerializeToString() for value in values]))
    assert column(decoded, "version") == [5]
    assert [waiting.schema for waiting in decoded.waiting] == ["b"]
    assert [found[:2] for found in reasons(decoded)] == [(2, "malformed")]


# -- declared fields --------------------------------------------------------------------------------------


def check(fields, file="everything.proto", message="everything.Everything"):
    types = {name: parse_type(text) for name, text in fields.items()}
    check_fields([describe(definition(file, message))], types)


@pytest.mark.parametrize(
    ("name", "declared", "told"),
    [
        ("nothing", "Int8", "'nothing' is no field of everything.Everything"),
        ("inner.nothing", "Int8", "is no field of"),
        ("ri", "Int32", "needs an Array; such as Array(Int32)"),
        ("msi", "String", "needs a Map; such as Map(String, Int32)"),
        ("i32", "Array(Int32)", "needs no Array or Map; such as Int32"),
        ("inner", "Int32", "needs a Tuple, or a String for its JSON; such as Tuple(id Int64, name String)"),
        ("rm.id", "Int64", "everything.Everything.rm is repeated; declare it as an Array"),
        ("i32.x", "Int64", "everything.Everything.i32 is no message"),
    ],
)
def test_a_declared_field_that_can_never_be_read_is_refused(name, declared, told):
    with pytest.raises(ConfigurationError) as refused:
        check({name: declared})
    assert told in str(refused.value)


def test_derived_types_hold_every_value_of_their_field():
    check(derived())
    assert derived("legacy.proto", "legacy.Legacy") == {
        "id": "Nullable(Int64)", "size": "Nullable(Int32)", "level": "Nullable(String)",
        "note": "Nullable(String)", "plain": "Array(Int32)", "dense": "Array(Int32)",
    }  # fmt: skip
    tree = derived("everything.proto", "everything.Tree")
    assert tree == {"left": "Nullable(String)", "v": "Int32", "kids": "Array(String)"}


def test_a_recursive_message_is_json_below_the_first_level():
    message = message_class("everything.proto", "everything.Tree")
    value = json_format.ParseDict({"v": 1, "left": {"v": 2, "left": {"v": 3}}}, message())
    given = {"schemas": [schema("1", "everything.proto", "everything.Tree")]}
    assert only("left", "String", value, **given) == ['{"left":{"v":3},"v":2}']
    assert only("left.left.v", "Int32", value, **given) == [3]


# -- messages in pieces -----------------------------------------------------------------------------------


def in_pieces(*messages) -> bytes:
    """Messages one behind the other are one message, in which their submessages are merged."""
    return b"".join(message.SerializeToString() for message in messages)


def piece(**values):
    """`inner__id=5` sets `id` of the message `inner`."""
    message = everything()()
    for path, value in values.items():
        *steps, last = path.split("__")
        holder = message
        for step in steps:
            holder = getattr(holder, step)
        setattr(holder, last, value)
    return message


def test_a_message_in_pieces_is_merged_as_json_and_as_columns():
    value = in_pieces(piece(inner__id=5, ts__seconds=7), piece(inner__name="x", ts__nanos=10**9 // 2))
    whole = everything().FromString(value)
    for fields in (
        {"inner": "String", "ts": "String"},
        {"inner": "Nullable(String)", "ts": "Nullable(String)"},
    ):
        decoded = read([value, whole], fields)
        assert (
            decoded.rows.to_pylist()
            == [{"inner": '{"id":"5","name":"x"}', "ts": '"1970-01-01T00:00:07.500Z"'}] * 2
        )
    assert only("inner", "Tuple(id Int64, name String)", value) == [{"id": 5, "name": "x"}]


def test_pieces_of_nested_messages_lists_and_map_entries_are_merged_as_json():
    tree = message_class("everything.proto", "everything.Tree")
    given = {"schemas": [schema("1", "everything.proto", "everything.Tree")]}
    first, second = tree(), tree()
    first.left.left.v, second.left.left.left.v = 1, 2
    value = in_pieces(first, second)
    expected = '{"left":{"v":2},"v":1}'
    assert only("left.left", "Nullable(String)", value, tree(), first, **given) == [expected, None, '{"v":1}']
    kids = tree()
    kids.kids.add().MergeFromString(value)
    kids.kids.add()
    assert only("kids", "Array(Tuple(v Int32, left Nullable(String)))", kids, tree(), **given) == [
        [{"v": 0, "left": '{"left":{"left":{"v":2},"v":1}}'}, {"v": 0, "left": None}],
        [],
    ]
    entry = b"\x08\x01" + b"\x12\x02\x08\x05" + b"\x12\x03\x12\x01z"
    assert only("mim", "Map(Int32, String)", b"\xd2\x01" + bytes([len(entry)]) + entry) == [
        [(1, '{"id":"5","name":"z"}')]
    ]


@pytest.mark.parametrize("other", [{}, {"one": "Nullable(String)"}, {"oa": "Nullable(Int32)"}])
def test_a_member_of_a_oneof_may_be_json_beside_the_others_and_the_last_one_counts(other):
    om = piece(om__id=1)
    values = [
        in_pieces(om, piece(om__name="q")),
        in_pieces(om, piece(oa=3), piece(om__name="q")),
        in_pieces(om, piece(oa=3)),
        b"",
    ]
    decoded = read(values, {"om": "Nullable(String)", **other})
    assert column(decoded, "om") == ['{"id":"1","name":"q"}', '{"name":"q"}', None, None]
    if "one" in other:
        assert column(decoded, "one") == ["om", "om", "oa", None]
    if "oa" in other:
        assert column(decoded, "oa") == [None, None, 3, None]


def test_json_of_maps_is_the_same_in_every_process():
    """The protobuf library orders maps by an address; a batch that is made again must have the same texts."""
    letters = "hgfedcba"
    message = everything()()
    for letter in letters:
        message.st[letter] = [dict.fromkeys(letters, 1)]
        message.va.struct_value[letter] = None
    message.lv.append(dict.fromkeys(letters, 1))
    message.any.Pack(message.st)
    inner = ",".join(f'"{letter}":1.0' for letter in sorted(letters))
    struct = ",".join(f'"{letter}":[{{{inner}}}]' for letter in sorted(letters))
    fields = dict.fromkeys(("st", "va", "lv"), "String")
    assert read([message], fields).rows.to_pylist() == [
        {
            "st": f"{{{struct}}}",
            "va": "{" + ",".join(f'"{letter}":null' for letter in sorted(letters)) + "}",
            "lv": f"[{{{inner}}}]",
        }
    ]
    assert only("any", "String", message) == [
        f'{{"@type":"type.googleapis.com/google.protobuf.Struct","value":{{{struct}}}}}'
    ]


def test_json_of_a_message_keeps_the_order_of_its_fields_and_sorts_its_maps():
    inside, outside = everything()(), everything()()
    for key in (5, 11, 2, 40, 3, 8):
        inside.msi[str(key)] = key
        inside.mim[key].id = key
    inside.i32 = 7
    outside.any.Pack(inside)
    (text,) = only("any", "String", outside)
    keys = sorted(["5", "11", "2", "40", "3", "8"])
    numbers = ",".join(f'"{key}":{key}' for key in keys)
    messages = ",".join(f'"{key}":{{"id":"{key}"}}' for key in keys)
    head = '{"@type":"type.googleapis.com/everything.Everything","i32":7,'
    assert text == f'{head}"msi":{{{numbers}}},"mim":{{{messages}}}}}'
    unknown = everything()()
    unknown.any.type_url = "x/y.Z"
    assert only("any", "String", unknown) == ['{"@type":"x/y.Z","value":""}']
