SELECT (o.placed_at AT TIME ZONE 'UTC')::date AS day, count(DISTINCT o.id) AS orders,
       coalesce(sum(l.quantity * l.price), 0) AS revenue
FROM shop_order o
LEFT JOIN shop_line l ON l.order_id = o.id
WHERE NOT o.removed
GROUP BY day
ORDER BY day
