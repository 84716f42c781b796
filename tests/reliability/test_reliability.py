"""No defect comes back."""

import pytest

from tests.reliability.rows import Row, rows


@pytest.mark.parametrize("row", rows(), ids=str)
def test_defect_stays_mended(row: Row) -> None:
    assert row.measure()
