import ssl

import pytest
import urllib3.exceptions as transport
from clickhouse_connect.driver import exceptions as driver

from oncehouse.clickhouse import error_codes
from oncehouse.clickhouse.errors import FailureKind, classify, classify_code, classify_status


def raised(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("code", [159, 202, 209, 210, 241, 242, 243, 252, 285, 286, 319, 394, 999])
def test_what_may_pass_is_transient(code):
    assert classify_code(code, "").kind is FailureKind.TRANSIENT


@pytest.mark.parametrize("code", [6, 16, 53, 60, 349, 376, 469])
def test_what_the_table_will_never_take_is_permanent(code):
    assert classify_code(code, "").kind is FailureKind.PERMANENT


@pytest.mark.parametrize("code", [81, 164, 194, 452, 497, 516])
def test_what_the_user_has_to_set_right_is_configuration(code):
    assert classify_code(code, "").kind is FailureKind.CONFIGURATION


def test_no_code_is_on_two_lists():
    lists = [error_codes.TRANSIENT, error_codes.PERMANENT, error_codes.CONFIGURATION]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


def test_a_code_on_no_list_is_neither_given_up_nor_tried_for_ever():
    failure = classify_code(395, "Value passed to 'throwIf' function is non-zero")
    assert failure.kind is FailureKind.UNLISTED
    assert failure.outcome_unknown


@pytest.mark.parametrize("code", [159, 252, 319, 394, 60, 16, 497, 469, 395, 123456])
def test_rows_may_have_arrived_unless_the_query_was_never_let_in(code):
    assert classify_code(code, "").outcome_unknown


@pytest.mark.parametrize("code", [202, 516, 452, 164])
def test_a_query_that_was_never_let_in_wrote_nothing(code):
    assert not classify_code(code, "").outcome_unknown


def test_too_many_parts_asks_for_fewer_inserts():
    assert classify_code(252, "Too many parts (3000)").too_many_parts


def test_a_batch_over_too_many_partitions_is_not_taken_for_too_many_parts():
    failure = classify_code(252, "Too many partitions for single INSERT block (more than 100).")
    assert failure.kind is FailureKind.PERMANENT
    assert not failure.too_many_parts


@pytest.mark.parametrize(
    ("status", "kind", "outcome_unknown"),
    [
        (502, FailureKind.TRANSIENT, True),
        (504, FailureKind.TRANSIENT, True),
        (429, FailureKind.TRANSIENT, True),
        (413, FailureKind.PERMANENT, False),
        (400, FailureKind.CONFIGURATION, False),
        (401, FailureKind.CONFIGURATION, False),
        (302, FailureKind.CONFIGURATION, False),
    ],
)
def test_answers_without_a_code_are_judged_by_their_status(status, kind, outcome_unknown):
    failure = classify(driver.DatabaseError(f"HTTP driver received HTTP status {status}"))
    assert failure == classify_status(status, failure.message)
    assert (failure.kind, failure.outcome_unknown) == (kind, outcome_unknown)


def test_a_code_is_found_in_the_answer_when_its_header_is_lost():
    failure = classify(driver.DatabaseError("HTTP status 500, server response: Code: 241. DB::Exception"))
    assert (failure.code, failure.kind) == (241, FailureKind.TRANSIENT)


def test_a_connection_that_never_came_about_wrote_nothing():
    refused = transport.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    failure = classify(raised(driver.OperationalError("Error"), refused))
    assert failure.kind is FailureKind.TRANSIENT
    assert not failure.outcome_unknown


def test_the_reason_behind_exhausted_retries_is_what_counts():
    refused = transport.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    exhausted = transport.MaxRetryError(None, "/", refused)  # type: ignore[arg-type]
    assert not classify(raised(driver.OperationalError("Error"), exhausted)).outcome_unknown


@pytest.mark.parametrize(
    "error",
    [
        transport.ProtocolError("Connection aborted."),
        transport.ReadTimeoutError(None, "/", "timed out"),  # type: ignore[arg-type]
        ConnectionResetError(),
        TimeoutError(),
        transport.SSLError("decryption failed or bad record mac"),
    ],
)
def test_an_answer_that_was_lost_leaves_the_outcome_unknown(error):
    failure = classify(raised(driver.OperationalError("Error"), error))
    assert failure.kind is FailureKind.TRANSIENT
    assert failure.outcome_unknown


def test_a_certificate_that_is_not_trusted_is_configuration():
    error = transport.SSLError(ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))
    failure = classify(raised(driver.OperationalError("Error"), error))
    assert failure.kind is FailureKind.CONFIGURATION
    assert not failure.outcome_unknown


def test_what_the_driver_itself_refuses_was_never_sent():
    failure = classify(driver.ProgrammingError("Setting async_insert is readonly"))
    assert failure.kind is FailureKind.PERMANENT
    assert not failure.outcome_unknown
