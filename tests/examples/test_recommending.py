"""Recommendations on drawn ratings, scaled down."""

import recommending


def test_tastes_predict_better_than_biases(capsys):
    result = recommending.main(["--ratings", "20000"])
    biases, tastes = result["found"].values()
    assert tastes["rmse"] < biases["rmse"]
    assert tastes["recall"] > biases["recall"] > 0
    assert [len(films) for films in result["best"]] == [3, 3]
    assert "biases and two tastes: rmse " in capsys.readouterr().out
