"""What `cafe list` says of data sets."""

from vfl.cli.catalogue import catalogue
from vfl.datasets import datasets


def test_lines_name_the_papers_and_each_stands_for_itself():
    lines = {line.split()[0]: line for line in catalogue(datasets, options=False)}
    assert "(Alpaydin and Kaynak 1998)" in lines["digits"]
    assert "(Street et al. 1993)" in lines["breast_cancer"]
    assert not any("he same" in line for line in lines.values())
    assert "Parquet" in lines["parquet"]
