"""Unknown rows of a real side table are predicted through the coupling, with a ridge."""

import planes
import pytest


@pytest.mark.slow
def test_rows_that_the_table_lacks(capsys):
    errors = planes.main()
    mean, zero, unknown, ridge = errors.loc["all"]
    assert ridge < 0.8 < 0.99 * mean < zero
    assert unknown > 2
    assert (errors["unknown, l2_reg=0.03"] < 0.9).all()
    assert "1084 of them known" in capsys.readouterr().out
