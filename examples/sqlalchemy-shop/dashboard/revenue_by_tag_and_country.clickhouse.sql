SELECT t.name AS tag, c.country AS country, count() AS orders, sum(o.revenue) AS revenue
FROM (SELECT customer_id, revenue, arrayJoin(tags) AS tag_id FROM orders FINAL) AS o
JOIN customers AS c FINAL ON c.id = o.customer_id
JOIN tags AS t FINAL ON t.id = o.tag_id
GROUP BY tag, country
ORDER BY tag, country
