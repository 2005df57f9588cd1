"""Kafka read by the tasks themselves: ranges of offsets become columns of Arrow, and no record passes through Java.

`range_reader.py` reads one range after the other over a `connection.py`, `record_batches.py` turns a broker's answers
into columns, and `record_parser.py` is its compiled loop. Runs inside of Spark's tasks; imports no other package of the
pipeline but `formats` for the type of headers and `spark` for the size of blocks. Start reading at `range_reader.py`.
"""
