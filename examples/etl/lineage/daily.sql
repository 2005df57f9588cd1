-- Whole days: a range replaces partitions, so it begins where the day of last_time begins.
SELECT toDate(pos, 'UTC') AS day, country, count() AS payments, sum(amount) AS amount
FROM dwh.payments
WHERE pos >= toStartOfDay({last_time:DateTime64(3)}, 'UTC') AND pos <= {next_time:DateTime64(3)}
GROUP BY day, country
