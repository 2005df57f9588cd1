"""Messages of one layout are read without a parser, and in no other way than the parser reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples
from oncehouse.column_types.parser import parse_type
from oncehouse.pipeline.formats.base import Decoded
from oncehouse.pipeline.formats.json import decoder as json_decode
from oncehouse.pipeline.formats.json import fast_path
from oncehouse.pipeline.formats.json.decoder import JsonDecoder
from oncehouse.pipeline.formats.json.fast_path import find_layout, read_uniform

NEVER = 1 << 60
MESSAGES = 7
BOM = b"\xef\xbb\xbf"


def make(fields: dict[str, str], *, watch: bool = False) -> JsonDecoder:
    types = {name: parse_type(text) for name, text in fields.items()}
    return JsonDecoder(fields=types, max_message_bytes=2000, max_depth=6, watch=watch)


def outcome(done: Decoded) -> tuple[object, ...]:
    """All that a block came to; rows by their text, because -0.0 equals 0.0 and NaN nothing."""
    done.rows.validate(full=True)
    return (
        repr(done.rows.to_pylist()),
        done.rows.schema,
        done.taken.tolist(),
        done.skipped.tolist(),
        [(rejection.index, rejection.reason, rejection.detail) for rejection in done.rejected],
        done.new_fields,
    )


@pytest.fixture
def ways(monkeypatch) -> Counter:
    """How often a block was read by its layout, and how often that was refused.

    Slices are small, no block is passed over, and shapes are learnt from a few messages.
    """
    seen: Counter = Counter()
    right = read_uniform

    def counting(*arguments):
        table = right(*arguments)
        seen["refused" if table is None else "taken"] += 1
        return table

    monkeypatch.setattr(json_decode, "read_uniform", counting)
    monkeypatch.setattr(fast_path, "_SLICE", 3)
    monkeypatch.setattr(json_decode, "_MOST_UNTRIED_BLOCKS", 0)
    monkeypatch.setattr(json_decode, "_MOST_SINGLE_FAILURES", 2)
    monkeypatch.setattr(json_decode, "LEAST_UNIFORM", 1)
    return seen


@pytest.fixture
def decode_both(ways, monkeypatch):
    """Decode a block by its layout where that can be, again and again, and hold each time to the parser."""

    def decode(
        fields: dict[str, str], block: list[bytes | None], *, times: int = 1, watch: bool = False
    ) -> Decoded:
        values = pa.array(block, pa.binary())
        with monkeypatch.context() as parsing:
            parsing.setattr(json_decode, "LEAST_UNIFORM", NEVER)
            parsed = outcome(make(fields, watch=watch).decode(values))
        decoder = make(fields, watch=watch)
        for _ in range(times):
            done = decoder.decode(values)
            assert outcome(done) == parsed, (fields, block)
        return done

    return decode


# -- any layout, any types, and one odd message ------------------------------------------------------------


def quoted(*texts: str) -> tuple[str, ...]:
    return tuple(f'"{text}"' for text in texts)


TEXTS = quoted("", "x", "trailing ", "{}[],: null", "Grüße", "日本語 🙂", "'", "1", "x" * 60)
WHOLE = ("0", "1", "-1", "-0", "42", "127", "128", "255", "-128", "65535", "4294967295", "9007199254740993")
GREATEST = ("18446744073709551615", "9223372036854775807", "-9223372036854775808")
WIDE = ("340282366920938463463374607431768211455", "-170141183460469231731687303715884105728", "9" * 76)
FRACTIONS = ("0.5", "-0.25", "12.30", "1.50000", "1e5", "2E-3", "-0.0", "0", "7", "1e30", "3.4028235e38")
AMOUNTS = ("0.5", "12.30", "-12.34", "1.50000", "0", "-0", "9999.99", "123456789012345.67")
TIMES = quoted(
    "2024-01-01 00:00:00", "2024-01-01T10:11:12.123Z", "2024-03-31 02:30:00", "2024-01-01T00:00+02:00"
)
DAYS = quoted("2024-02-29", "1970-01-01", "2149-06-06", "1900-01-01")
WORDS = ("true", "false")

# The ways in which values of a type come; those of a block's key come in one of them.
KINDS: dict[str, list[tuple[str, ...]]] = {
    "String": [TEXTS],
    "LowCardinality(String)": [TEXTS],
    "FixedString(4)": [quoted("", "abc", "abcd"), TEXTS],
    "Enum8('view' = 1, 'click' = 2)": [quoted("view", "click"), TEXTS],
    "UUID": [quoted("00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-AABBCCDDEEFF"), TEXTS],
    "Bool": [WORDS],
    "Date": [DAYS],
    "DateTime": [TIMES, WHOLE],
    "DateTime64(3, 'Europe/Berlin')": [TIMES, WHOLE],
    "Float32": [FRACTIONS, WHOLE],
    "Float64": [FRACTIONS, WHOLE],
    **{
        f"{sign}Int{bits}": [WHOLE, WHOLE[:5], WHOLE + GREATEST]
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    **{name: [quoted(*WHOLE), quoted(*GREATEST), quoted("007", "+5", "1")] for name in ("Int64", "UInt64")},
    **{
        name: [WHOLE, quoted(*WHOLE), WHOLE + GREATEST + WIDE, quoted(*WIDE)]
        for name in ("Int128", "UInt128", "Int256", "UInt256")
    },
    **{
        name: [AMOUNTS, quoted(*AMOUNTS), WHOLE, quoted(*WHOLE), FRACTIONS, quoted(*FRACTIONS), WIDE]
        for name in (
            "Decimal(6, 2)",
            "Decimal(18, 2)",
            "Decimal(38, 10)",
            "Decimal(76, 10)",
            "Decimal(76, 60)",
        )
    },
    "Array(Int64)": [("[]", "[1, 2]")],
    "Tuple(k Int64)": [('{"k": 1}',)],
    "Map(String, Int64)": [("{}",)],
}
UNDECLARED = [TEXTS, WHOLE, FRACTIONS, WORDS, WIDE]
NUMBERS = (
    *("-0", "007", "-007", "+5", "1e5", "1E+5", "1.50000", "0x1F", "NaN", "-NaN", "Infinity", "Inf", "-", ""),
    *(
        "1 ",
        " 1",
        "1\t",
        "1.",
        ".5",
        "1_0",
        "1e400",
        "0e400",
        "-1e+0400",
        "1e-400",
        "1e308",
        "1e",
        "1,2",
        "\u0661",
    ),
    *("9" * 19, "9" * 39, "9" * 77, "9" * 400, f"0.{'1' * 90}", f"{'1' * 20}e60", "1e70", "1e-70", "1e76"),
)
ODD_BARE = (
    *NUMBERS,
    *WORDS,
    *("null", "True", "nul", "tru", "[]", "[1]", "{}", '{"a": 1}', "x", 'x"', '1, "a": 2', '1, "zz": 1'),
    *("1}", '1}{"a": 1', '1 "b": 2', '1, "": null'),
)
ODD_QUOTED = (
    *quoted(*NUMBERS),
    *TEXTS,
    *(
        '"x',
        '"x""',
        '"',
        '"a\\nb"',
        '"\\u00e9"',
        '"\\""',
        '"\\ud800"',
        '"x\ty"',
        '"x\ny"',
        '"x\\',
        '"\x7f"',
        '"\x01"',
    ),
    *('"", "a": "', '"}{"', '"", "zz": "'),
)
SPACES = ("", "", " ", "  ", "\t", "\n")
DECLARED = ("a", "b", "ключ", "with space", "{}")
NOT_DECLARED = ("zz", "", "a,b")
NESTED = ("Array(Int64)", "Tuple(k Int64)", "Map(String, Int64)")
PLAIN = [type_ for type_ in KINDS if type_ not in NESTED]
ODD_MESSAGES = (
    *(
        None,
        b"",
        b" ",
        b"{}",
        b"null",
        b"1",
        b'"ab"',
        b"[]",
        b"[1, 2]",
        b'["ab", "cd"]',
        b'[["a", "x"]]',
        b"\xff",
    ),
    *(
        b'{"a": 1}',
        b'{"a": "x"}',
        b'{"a": 1, "a": 1}',
        b'[["a", 1], ["b", 2]]',
        b"{" * 9,
        b'{"a": [[[[[[1]]]]]]}',
    ),
)


@dataclass(frozen=True)
class Style:
    """White space between tokens."""

    ends: tuple[str, str] = ("", "")
    inner: tuple[str, str] = ("", "")
    colon: tuple[str, str] = ("", " ")
    comma: tuple[str, str] = ("", " ")

    def write(self, pairs: list[tuple[str, str]]) -> bytes:
        colon = self.colon[0] + ":" + self.colon[1]
        comma = self.comma[0] + "," + self.comma[1]
        inside = comma.join(f'"{key}"{colon}{value}' for key, value in pairs)
        return f"{self.ends[0]}{{{self.inner[0]}{inside}{self.inner[1]}}}{self.ends[1]}".encode()


def make_style(chance: Random) -> Style:
    if chance.random() < 0.5:
        return Style()
    return Style(*((chance.choice(SPACES), chance.choice(SPACES)) for _ in range(4)))


def bare(type_: str) -> str:
    return type_[len("Nullable(") : -1] if type_.startswith("Nullable(") else type_


def choose_fields(chance: Random) -> dict[str, str]:
    fields = {name: chance.choice(PLAIN) for name in chance.sample(DECLARED, chance.randint(1, 3))}
    for name, type_ in fields.items():
        if chance.random() < 0.5 and "Low" not in type_:
            fields[name] = f"Nullable({type_})"
    return fields | ({"nested": chance.choice(NESTED)} if chance.random() < 0.05 else {})


def choose_values(chance: Random, type_: str | None) -> list[str]:
    """Some of one way in which values of this type come, nearly always."""
    ways = UNDECLARED if type_ is None else KINDS[bare(type_)]
    way = ("null",) if chance.random() < 0.1 else chance.choice(ways)
    return [chance.choice(way) for _ in range(chance.randint(1, 3))]


@dataclass(frozen=True)
class Case:
    fields: dict[str, str]
    messages: list[bytes | None]
    spoilt: bool


def make_case(chance: Random) -> Case:
    """Messages of one layout, of which one, or all, may then be spoilt."""
    fields = choose_fields(chance)
    keys = [*fields, *chance.sample(NOT_DECLARED, chance.choice([0, 0, 1, 2]))]
    chance.shuffle(keys)
    if len(keys) > 1 and chance.random() < 0.15:
        keys.pop()
    values = {key: choose_values(chance, fields.get(key)) for key in keys}
    style = make_style(chance)
    rows = [[(key, values[key][at % len(values[key])]) for key in keys] for at in range(MESSAGES)]
    messages: list[bytes | None] = [style.write(row) for row in rows]
    if chance.random() < 0.35:
        return Case(fields, messages, spoilt=False)
    spoil = chance.choice(
        [spoil_value] * 5 + [spoil_message, spoil_bytes, spoil_style, spoil_keys, spoil_quotes]
    )
    for place in range(MESSAGES) if chance.random() < 0.2 else [chance.randrange(MESSAGES)]:
        spoil(chance, style, rows, messages, place)
    return Case(fields, messages, spoilt=True)


def spoil_value(chance, style, rows, messages, place) -> None:
    row = list(rows[place])
    at = chance.randrange(len(row))
    key, value = row[at]
    fitting = ODD_QUOTED if value.startswith('"') else ODD_BARE
    row[at] = (key, chance.choice(fitting if chance.random() < 0.8 else ODD_QUOTED + ODD_BARE))
    messages[place] = style.write(row)


def spoil_message(chance, style, rows, messages, place) -> None:
    message = style.write(rows[place])
    messages[place] = chance.choice(
        [BOM + message, message + message, message[:-1], message[1:], *chance.sample(ODD_MESSAGES, 4)]
    )


def spoil_bytes(chance, style, rows, messages, place) -> None:
    message = style.write(rows[place])
    at = chance.randrange(len(message))
    put = chance.choice([b"", b'"', b" ", b"}", b"{", b",", b"\\", b"\n", b"\0", "é".encode()])
    messages[place] = message[:at] + put + message[at + chance.choice([0, 1]) :]


def spoil_style(chance, style, rows, messages, place) -> None:
    messages[place] = make_style(chance).write(rows[place])


def spoil_keys(chance, style, rows, messages, place) -> None:
    row = chance.sample(rows[place], len(rows[place]))
    messages[place] = style.write(chance.choice([row, row[1:], [*row, row[0]], [*row, ("zz", "1")]]))


def spoil_quotes(chance, style, rows, messages, place) -> None:
    """One has a quote too few and the next one too many: together they have as many as two."""
    message, other = style.write(rows[place]), (place + 1) % MESSAGES
    at = chance.choice([number for number, letter in enumerate(message) if letter == ord('"')])
    messages[place] = message[:at] + message[at + 1 :]
    messages[other] = style.write(rows[other])[:at] + b'"' + style.write(rows[other])[at:]


@pytest.mark.fuzz  # its examples are counted inside
def test_a_block_is_read_as_the_parser_would_read_it_whatever_its_layout_and_its_odd_message(
    ways, decode_both
):
    seen: Counter = Counter()

    @examples(300)
    @given(st.randoms(use_true_random=True))
    def hold(chance):
        case = make_case(chance)
        ways.clear()
        # Twice: shapes are learnt from what was parsed, and layouts are remembered.
        decode_both(case.fields, case.messages, times=2, watch=chance.random() < 0.3)
        seen["blocks"] += 1
        seen["whole and taken"] += bool(ways["taken"]) and not case.spoilt
        seen["spoilt and taken"] += bool(ways["taken"]) and case.spoilt
        seen["spoilt and refused"] += bool(ways["refused"]) and case.spoilt

    hold()
    assert seen["whole and taken"] > seen["blocks"] / 10, seen
    assert seen["spoilt and taken"] > seen["blocks"] / 50, seen
    assert seen["spoilt and refused"] > seen["blocks"] / 10, seen


# -- what is taken, and what is left to the parser ---------------------------------------------------------


def read(schema: dict[str, pa.DataType], *messages: str) -> pa.Table | None:
    """The messages in the layout of the first."""
    texts = [message.encode() for message in messages]
    layout = find_layout(texts[0])
    assert layout is not None
    return read_uniform(pa.array(texts, pa.binary()), pa.schema(list(schema.items())), layout)


def column(type_: pa.DataType, *values: str) -> list[object] | None:
    table = read({"a": type_}, *(f'{{"a": {value}, "z": "x"}}' for value in values))
    return None if table is None else table.column("a").to_pylist()


@pytest.mark.parametrize(
    "message",
    [
        "{}",
        '{"a": null}',
        '{"a": [1]}',
        '{"a": {"b": 1}}',
        '{"a": 1, "a": 1}',
        '{"a": NaN}',
        '{"a": "\\n"}',
        '{"a": "x\ty"}',
        '{"a": 1',
        '{"a": 01}',
        "[1, 2]",
        '["ab", "cd"]',
        '[["a", "x"]]',
        '"ab"',
        "null",
        '\ufeff{"a": 1}',
    ],
)
def test_a_message_that_is_no_flat_object_of_plain_values_tells_no_layout(message):
    assert find_layout(message.encode()) is None


def test_a_layout_is_what_stands_between_the_values_and_nulls_are_a_part_of_it():
    layout = find_layout('{ "a" :1.5 , "n":null,\t"ü": "x"}'.encode())
    assert layout is not None
    assert layout.keys == {"a", "n", "ü"}
    assert [value.key for value in layout.values] == ["a", "ü"]
    assert layout.literals == (b'{ "a" :', ' , "n":null,\t"ü": "'.encode(), b'"}')
    assert (layout.quotes, layout.tabs) == (8, 1)
    assert layout == find_layout('{ "a" :-7 , "n":null,\t"ü": "other"}'.encode())


def test_declared_keys_are_read_whatever_their_order_and_those_that_are_missing_are_null():
    schema = {"missing": pa.string(), "b": pa.int64(), "n": pa.bool_(), "a": pa.string()}
    table = read(
        schema, *(f'{{"a": "x{number}", "n": null, "z": 1e{number}, "b": {number}}}' for number in range(20))
    )
    assert table is not None
    assert table.schema == pa.schema(list(schema.items()))
    assert table.to_pylist() == [
        {"missing": None, "b": number, "n": None, "a": f"x{number}"} for number in range(20)
    ]


def test_a_slice_of_a_larger_array_is_read():
    texts = pa.array([b"", b'{"a": 1}', b'{"a": 22}', b'"'], pa.large_binary()).slice(1, 2)
    table = read_uniform(texts, pa.schema([("a", pa.int64())]), find_layout(b'{"a": 333}'))
    assert table.column("a").to_pylist() == [1, 22]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.string(), ('""', '"Grüße"', '"{}, :"'), ["", "Grüße", "{}, :"]),
        (pa.int64(), ("1", "-5", "0"), [1, -5, 0]),
        (pa.uint64(), ("7", "18446744073709551615"), [7, 18446744073709551615]),
        (pa.float64(), ("1", "0.5", "1e5", "-2E-03"), [1.0, 0.5, 1e5, -2e-3]),
        (pa.bool_(), ("true", "false"), [True, False]),
        (pa.decimal128(18, 2), ("1.5", "-7"), [Decimal("1.50"), Decimal("-7.00")]),
        (pa.decimal128(18, 2), ('"1.5"', '"-7"'), [Decimal("1.50"), Decimal("-7.00")]),
    ],
)
def test_plain_values_are_taken(type_, values, expected):
    assert column(type_, *values) == expected


@pytest.mark.parametrize(
    ("type_", "first", "odd"),
    [
        *(
            (pa.int64(), "1", odd)
            for odd in ("007", "+5", "0x1F", "1.0", "1e5", "1 ", "", "nul", "9" * 19, "true")
        ),
        *((pa.uint64(), "1", odd) for odd in ("-1", "-0", "9" * 20)),
        *(
            (pa.float64(), "1", odd)
            for odd in ("NaN", "Infinity", "1.", ".5", "0e400", "1e400", "007", "0x1F", "\u0661")
        ),
        *((pa.bool_(), "true", odd) for odd in ("True", "1", "NULL", "")),
        *((pa.decimal128(6, 2), "1", odd) for odd in ("1.505", "1e2", "0000001", "1234567", "+1", "NaN")),
        *((pa.decimal128(6, 2), '"1"', odd) for odd in ('"x"', '""', '"1 "', '"1234567"', '"1.505"')),
        *(
            (pa.string(), '"x"', odd)
            for odd in ('"\\n"', '"x\ty"', '"x', 'x"', "null", "1", '""", "', '"", "a": "')
        ),
        # A way in which this type is not read, even if all messages agree.
        (pa.string(), "1", "1"),
        (pa.int64(), '"1"', '"1"'),
        (pa.list_(pa.int64()), '"x"', '"x"'),
    ],
)
def test_one_odd_value_leaves_all_to_the_parser(type_, first, odd):
    assert column(type_, first, odd) is None
    assert column(type_, *([first] * 9), odd, first) is None


@pytest.mark.parametrize("odd", ["NaN", "01", "1e400", "0e400", "", "1 ", "nul", "[1]", "{}", "1, 2"])
def test_a_value_that_nobody_declared_is_looked_at_as_well(odd):
    assert read({"a": pa.string()}, '{"z": 1, "a": ""}', '{"z": false, "a": ""}') is not None
    assert read({"a": pa.string()}, '{"z": 1, "a": ""}', f'{{"z": {odd}, "a": ""}}') is None


@pytest.mark.parametrize(
    "odd",
    [
        '{"a": "x", "b": 1}',
        '{"b": 1, "a":"x"}',
        '{"b": 1, "a": "x" }',
        '{"b": 1, "c": "x"}',
        '{"b": 1, "a": "x"}}',
        '{"b": 1, "a": "x"}{"b": 1, "a": "x"}',
        '{"b": 1, "a": "x", "c": 1}',
        '{"b":\t1, "a": "x"}',
        '{"b": 1}',
        "{}",
        "",
    ],
)
def test_a_message_of_another_layout_leaves_all_to_the_parser(odd):
    schema = {"a": pa.string(), "b": pa.int64()}
    usual = '{"b": 1, "a": "x"}'
    assert read(schema, usual, usual) is not None
    assert read(schema, usual, odd, usual) is None


def test_quotes_that_one_message_lacks_and_the_next_has_too_many_are_not_counted_together():
    schema = {"a": pa.string(), "b": pa.string()}
    usual = '{"a": "x", "b": "y"}'
    assert read(schema, usual, '{"a": "x, "b": "y"}', '{"a": "x"", "b": "y"}') is None
    assert read(schema, usual, '{"a": "x", "b": "y}', '"{"a": "x", "b": "y"}') is None


def test_a_value_that_is_missing_is_not_made_up_of_what_stands_around_it():
    """The white space before it, and that behind it, may be the same byte."""
    schema = {"a": pa.int64(), "b": pa.string()}
    assert read(schema, '{"a": 1 , "b": "x"}', '{"a": , "b": "x"}') is None


def test_no_messages_are_a_table_without_rows():
    table = read_uniform(pa.array([], pa.binary()), pa.schema([("a", pa.int64())]), find_layout(b'{"a": 1}'))
    assert table.num_rows == 0


# -- when it is tried --------------------------------------------------------------------------------------


def block_of(message: str, count: int = 10) -> pa.Array:
    return pa.array([(message % number).encode() for number in range(count)], pa.binary())


ALIKE, OTHER = block_of('{"a": %d}'), block_of('{ "a": %d}')
DIFFERING = pa.concat_arrays([ALIKE.slice(0, 9), OTHER.slice(0, 1)])


@pytest.fixture
def tried(ways, monkeypatch):
    """Which of the blocks were tried without the parser."""
    monkeypatch.setattr(json_decode, "_MOST_UNTRIED_BLOCKS", 31)

    def decode(decoder: JsonDecoder, *blocks: pa.Array) -> list[int]:
        found = []
        for number, block in enumerate(blocks):
            before = ways.total()
            decoder.decode(block)
            found += [number] if ways.total() > before else []
        return found

    return decode


def test_blocks_that_differ_are_tried_ever_less_often_and_the_first_that_is_alike_ends_that(ways, tried):
    decoder = make({"a": "Int64"})
    tries = [0, 2, 6, 14, 30, 62, 94]
    assert tried(decoder, *[DIFFERING] * 95) == tries
    assert ways == {"refused": len(tries)}
    assert tried(decoder, *[ALIKE] * 34) == [31, 32, 33]
    assert tried(decoder, DIFFERING, ALIKE, ALIKE) == [0, 2]


def test_a_layout_is_remembered_and_another_one_takes_its_place_at_once(ways, tried):
    decoder = make({"a": "Int64"})
    assert tried(decoder, ALIKE, ALIKE) == [0, 1]
    assert ways == {"taken": 2}
    assert tried(decoder, OTHER, OTHER) == [0, 1]
    assert ways == {"taken": 4, "refused": 1}


def test_the_layout_that_was_just_refused_is_not_tried_again_for_the_same_block(ways, tried):
    decoder = make({"a": "Int64"})
    tried(decoder, ALIKE, DIFFERING)
    assert ways == {"taken": 1, "refused": 1}


def test_few_messages_and_fields_with_maps_go_to_the_parser(ways, tried, monkeypatch):
    monkeypatch.setattr(json_decode, "LEAST_UNIFORM", 10)
    assert tried(make({"a": "Int64"}), ALIKE.slice(0, 9), ALIKE) == [1]
    assert tried(make({"a": "Nullable(Int64)", "m": "Map(String, String)"}), ALIKE, ALIKE) == []


def test_keys_that_nobody_declared_go_to_the_parser_where_they_are_looked_for(ways, tried):
    block = block_of('{"a": %d, "new": "x"}')
    decoder = make({"a": "Int64"}, watch=True)
    assert tried(decoder, *[block] * 4) == []
    assert decoder.decode(block).new_fields == {"new": "Nullable(String)"}
    assert tried(make({"a": "Int64"}), block) == [0]
    assert tried(make({"a": "Int64"}, watch=True), ALIKE) == [0]


def test_numbers_that_come_as_texts_are_read_so_once_the_parser_has_learnt_it(ways, decode_both):
    decode_both({"a": "UInt64", "t": "DateTime"}, [b'{"a": "%d", "t": 1}' % n for n in range(10)], times=3)
    assert ways["taken"]


def test_a_large_block_of_usual_events_is_taken_as_it_comes(monkeypatch):
    """With the numbers of the pipeline itself."""
    taken = []
    monkeypatch.setattr(
        json_decode, "read_uniform", lambda *given: taken.append(read_uniform(*given)) or taken[-1]
    )
    block = block_of('{"a": %d, "b": "x"}', 20_000)
    done = make({"a": "Int64", "b": "String"}).decode(block)
    assert taken[0].num_rows == 20_000
    assert done.rows.column("a").to_pylist() == list(range(20_000))


# -- odd messages among many of one layout -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "value", "read"),
    [
        (pa.int64(), "-12", -12),
        (pa.uint64(), "7", 7),
        (pa.bool_(), "true", True),
        (pa.float64(), "1.5", 1.5),
        (pa.decimal128(6, 2), "1.5", Decimal("1.50")),
    ],
)
def test_null_stands_for_a_number_or_a_word(type_, value, read):
    assert column(type_, value, "null", value) == [read, None, read]
    assert column(type_, value, value, value, "null", "null", "null") == [read] * 3 + [None] * 3


ODD = {
    "an escape": '{"a": 1, "b": "x\\ny"}',
    "a null for a text": '{"a": 1, "b": null}',
    "a key more": '{"a": 1, "b": "x", "c": 2}',
    "a key less": '{"b": "x"}',
    "no JSON": '{"a": 1, "b": "x',
    "a tab in a text": '{"a": 1, "b": "x\ty"}',
}


@pytest.fixture
def parsed(monkeypatch) -> list[int]:
    """How many messages each call of the parser got."""
    seen: list[int] = []
    right = JsonDecoder._parse_block

    def counting(self, block, rejected):
        seen.append(len(block.index))
        return right(self, block, rejected)

    monkeypatch.setattr(JsonDecoder, "_parse_block", counting)
    return seen


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_odd_message_alone_is_parsed_and_rows_keep_their_order(decode_both, parsed, odd, place):
    fields = {"a": "Nullable(Int64)", "b": "Nullable(String)"}
    block = [b'{"a": %d, "b": "x%d"}' % (number, number) for number in range(MESSAGES)]
    block[place] = odd.encode()
    decode_both(fields, block, times=2)
    by_the_parser_alone, *by_layout = parsed
    assert by_the_parser_alone == MESSAGES
    assert by_layout == [1, 1]


def test_a_block_of_which_half_is_odd_is_parsed_whole(decode_both, parsed):
    block = [b'{"a": 1}', b'{"a": 1, "b": 2}'] * 3 + [b'{"c": "x"}']
    decode_both({"a": "Int64"}, block)
    assert parsed == [MESSAGES, MESSAGES]


@pytest.mark.parametrize(("keys", "length", "told"), [(200, 1, True), (201, 1, False), (2, 70_000, False)])
def test_messages_of_very_many_keys_or_bytes_are_left_to_the_parser(keys, length, told):
    message = b"{" + b", ".join(b'"k%d": "%s"' % (key, b"x" * length) for key in range(keys)) + b"}"
    assert (find_layout(message) is not None) == told
