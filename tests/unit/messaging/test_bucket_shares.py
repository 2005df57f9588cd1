"""Who should hold which buckets: pure."""

from hypothesis import given
from hypothesis import strategies as st

from oncehouse.messaging.bucket_leases import BucketLease, plan_share

HOLDERS = ["a", "b", "c", "d"]


@given(
    leases=st.lists(st.tuples(st.sampled_from(["", *HOLDERS]), st.booleans()), min_size=1, max_size=20),
    live=st.sets(st.sampled_from(HOLDERS), min_size=1),
)
def test_members_that_follow_their_plans_share_evenly_and_never_hold_a_bucket_twice(leases, live):
    # A holder that is no live member has let its leases run out.
    state = [
        BucketLease(bucket=bucket, holder=holder, token=1, live=bool(holder) and holder in live and alive)
        for bucket, (holder, alive) in enumerate(leases)
    ]
    for _ in range(3):
        for me in sorted(live):
            plan = plan_share(state, live, me)
            before = {lease.bucket: lease for lease in state}
            assert all(before[bucket].holder == me or not before[bucket].live for bucket in plan.take)
            held = (set(plan.keep) | set(plan.take)) - set(plan.surplus)
            state = [
                BucketLease(bucket=lease.bucket, holder=me, token=1, live=True)
                if lease.bucket in held
                else BucketLease(bucket=lease.bucket, holder="", token=1, live=False)
                if lease.holder == me
                else lease
                for lease in state
            ]
    counts = [sum(lease.holder == me for lease in state) for me in live]
    assert sum(counts) == len(state)
    assert max(counts) - min(counts) <= 1


def test_a_newcomer_takes_nothing_that_is_held_but_the_others_learn_what_to_give_up():
    state = [BucketLease(bucket=n, holder="a", token=1, live=True) for n in range(4)]
    assert plan_share(state, ["a", "b"], "b").take == ()
    assert plan_share(state, ["a", "b"], "a").surplus == (2, 3)
