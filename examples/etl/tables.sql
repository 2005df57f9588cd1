-- Stage tables: what arrives. `pos` and `id` only grow, and the table is sorted by them.
CREATE DATABASE stage;
CREATE TABLE stage.orders (id UInt64, pos DateTime64(3, 'UTC'), customer UInt32, quantity UInt32)
ENGINE = MergeTree ORDER BY (pos, id);
CREATE TABLE stage.payments (id UInt64, pos DateTime64(3, 'UTC'), order_id UInt64, amount UInt32)
ENGINE = MergeTree ORDER BY (pos, id);
CREATE TABLE stage.customers (id UInt64, pos DateTime64(3, 'UTC'), customer UInt32, country String)
ENGINE = MergeTree ORDER BY (pos, id);

-- Fact tables: what is built. They remember their latest inserts, so that a repeated step adds nothing.
CREATE DATABASE dwh;
CREATE TABLE dwh.customers (customer UInt32, country String)
ENGINE = MergeTree ORDER BY customer;
CREATE TABLE dwh.orders (id UInt64, pos DateTime64(3, 'UTC'), customer UInt32, country Nullable(String), quantity UInt32)
ENGINE = MergeTree ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000;
CREATE TABLE dwh.payments (id UInt64, pos DateTime64(3, 'UTC'), order_id UInt64, country Nullable(String), quantity UInt32, amount UInt32)
ENGINE = MergeTree ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000;
CREATE TABLE dwh.large (id UInt64, pos DateTime64(3, 'UTC'), country Nullable(String), quantity UInt32)
ENGINE = MergeTree ORDER BY (pos, id) SETTINGS non_replicated_deduplication_window = 1000;
CREATE TABLE dwh.daily (day Date, country Nullable(String), payments UInt64, amount UInt64)
ENGINE = MergeTree PARTITION BY day ORDER BY tuple();

-- Transform views, one of each kind. A reload reads all there is.
CREATE VIEW ETL.CustomersTransform AS
SELECT customer, argMax(country, (pos, id)) AS country FROM stage.customers GROUP BY customer;

-- This one reads its range from the offsets. The condition on pos alone serves the primary key, the one on both is exact.
CREATE VIEW ETL.OrdersTransform AS
WITH (SELECT (last, next) FROM ETL.OffsetsLocal WHERE topic = 'Orders') AS span
SELECT o.id AS id, o.pos AS pos, o.customer AS customer, c.country AS country, o.quantity AS quantity
FROM
(
    SELECT * FROM stage.orders
    WHERE pos >= span.1.1 AND pos <= span.2.1 AND (pos, id) > span.1 AND (pos, id) <= span.2
) AS o
ASOF LEFT JOIN (SELECT customer, pos, toNullable(country) AS country FROM stage.customers) AS c
ON o.customer = c.customer AND o.pos >= c.pos;

-- This one takes its range as parameters.
CREATE VIEW ETL.PaymentsTransform AS
SELECT p.id AS id, p.pos AS pos, p.order_id AS order_id, o.country AS country, o.quantity AS quantity, p.amount AS amount
FROM
(
    SELECT * FROM stage.payments
    WHERE pos >= {last_time:DateTime64(3)} AND pos <= {next_time:DateTime64(3)}
        AND (pos, id) > ({last_time:DateTime64(3)}, {last_id:UInt64})
        AND (pos, id) <= ({next_time:DateTime64(3)}, {next_id:UInt64})
) AS p
INNER JOIN dwh.orders AS o ON o.id = p.order_id;
