SELECT t.name AS tag, c.country, count(DISTINCT o.id) AS orders, coalesce(sum(l.quantity * l.price), 0) AS revenue
FROM shop_order o
JOIN shop_customer c ON c.id = o.customer_id
JOIN shop_order_tags ot ON ot.order_id = o.id
JOIN shop_tag t ON t.id = ot.tag_id
LEFT JOIN shop_line l ON l.order_id = o.id
WHERE NOT o.removed
GROUP BY t.name, c.country
ORDER BY t.name, c.country
