"""Messages that a service hands over in its own database transaction, and the relay that takes them to Kafka."""
