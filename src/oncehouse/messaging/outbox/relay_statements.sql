-- name: claim
-- One look a bucket through the index of waiting rows. The lease is read in the same statement: a bucket that another
-- relay has taken over gives nothing.
WITH held AS MATERIALIZED (
    SELECT lease.bucket
    FROM {leases} AS lease
    JOIN unnest(%(buckets)s::smallint[], %(tokens)s::bigint[]) AS mine (bucket, token)
        ON lease.bucket = mine.bucket AND lease.token = mine.token
    WHERE lease.name = %(name)s
),
trouble AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM {outbox}
        WHERE parked_at IS NOT NULL AND behind IS NULL AND bucket = ANY (%(buckets)s::smallint[])
    ) AS found
)
SELECT
    waiting.seq, waiting.bucket, waiting.id::text, waiting.topic, waiting.key, waiting.value, waiting.headers,
    CASE WHEN trouble.found THEN (
        SELECT parked.id::text FROM {outbox} AS parked
        WHERE parked.parked_at IS NOT NULL AND parked.behind IS NULL
            AND parked.bucket = waiting.bucket AND parked.topic = waiting.topic AND parked.key = waiting.key
        ORDER BY parked.seq LIMIT 1
    ) END
FROM trouble, held
CROSS JOIN LATERAL (
    SELECT oldest.*, sum(octet_length(oldest.value)) OVER (
        ORDER BY oldest.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS bytes_before
    FROM (
        SELECT entry.seq, entry.bucket, entry.id, entry.topic, entry.key, entry.value, entry.headers
        FROM {outbox} AS entry
        WHERE entry.bucket = held.bucket AND entry.sent_at IS NULL AND entry.parked_at IS NULL
        ORDER BY entry.seq LIMIT %(rows)s
    ) AS oldest
) AS waiting
WHERE waiting.bytes_before IS NULL OR waiting.bytes_before < %(size_bytes)s

-- name: held
WITH held AS MATERIALIZED (
    SELECT lease.bucket
    FROM {leases} AS lease
    JOIN unnest(%(buckets)s::smallint[], %(tokens)s::bigint[]) AS mine (bucket, token)
        ON lease.bucket = mine.bucket AND lease.token = mine.token
    WHERE lease.name = %(name)s
    ORDER BY lease.bucket
    FOR SHARE OF lease
)

-- name: delete
DELETE FROM {outbox} WHERE seq = ANY (%(seqs)s::bigint[]) AND bucket IN (SELECT bucket FROM held)

-- name: mark
UPDATE {outbox} AS entry
SET sent_at = extract(epoch from clock_timestamp()), sent_partition = done.partition, sent_offset = done.position
FROM unnest(%(seqs)s::bigint[], %(partitions)s::integer[], %(offsets)s::bigint[]) AS done (seq, partition, position)
WHERE entry.seq = done.seq AND entry.bucket IN (SELECT bucket FROM held)

-- name: waiting
SELECT one.bucket FROM unnest(%(buckets)s::smallint[]) AS one (bucket)
WHERE EXISTS (
    SELECT 1 FROM {outbox} AS entry
    WHERE entry.bucket = one.bucket AND entry.sent_at IS NULL AND entry.parked_at IS NULL
)
