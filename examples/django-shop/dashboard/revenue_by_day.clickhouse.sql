SELECT toDate(placed_at) AS day, count() AS orders, sum(revenue) AS revenue
FROM orders FINAL
GROUP BY day
ORDER BY day
