"""What Replacing makes of a reading, straight from columns (`copied_columns.py`): no row of it is a Python object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncehouse.sync.model.arrow_rows import make_block
from oncehouse.sync.model.engines import Replacing
from oncehouse.sync.model.model_sync import ModelSync


def read_copied(sync: type[ModelSync], number: int, keys: Sequence[str]) -> pa.RecordBatch | None:
    """The rows of these keys under this number, deleted where there is none; None where they have to be looked at."""
    declared = sync.declaration()
    copied = sync.read_block(keys) if type(declared.engine) is Replacing else None
    if copied is None:
        return None
    wanted = pa.array(keys, pa.string())
    missing = wanted.filter(pc.invert(pc.is_in(wanted, value_set=copied.keys))).to_pylist()
    rows = [declared.deleted_row(sync.parse_key(key)) for key in missing]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(declared.columns)
    absent = make_block(declared.columns, columns).cast(copied.block.schema)
    present = copied.block.num_rows
    whole = pa.concat_batches([copied.block, absent])
    own = [
        pa.array(np.full(whole.num_rows, number, np.uint64)),
        pa.array((np.arange(whole.num_rows) >= present).astype(np.uint8)),
    ]
    return pa.RecordBatch.from_arrays([*whole.columns, *own], names=list(declared.all_columns))
