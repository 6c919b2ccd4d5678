"""The coupled model predicts tests of patients whose rows the table lacks, if they are unknown."""

import coupling


def test_unknown_rows_are_predicted(capsys):
    errors = coupling.main()
    assert errors["unknown"] < 0.2 < 0.8 < errors["zero"]
    assert "missing='unknown'" in capsys.readouterr().out
