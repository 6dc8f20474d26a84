"""Real data: loading, preparing and sharing it out among clients."""

from hewfl.data.catalogue import CATALOGUE
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch
from hewfl.data.entry import DataFile, Entry
from hewfl.data.formats import Texts
from hewfl.data.load import ag_news_texts, check, load
from hewfl.data.partition import (
    Partition,
    class_counts,
    dirichlet_partition,
    iid_partition,
)
from hewfl.data.prepare import Prepared, prepare, row_labels, split_rows

__all__ = [
    "CATALOGUE",
    "DataFile",
    "Dataset",
    "Entry",
    "Partition",
    "Prepared",
    "Texts",
    "ag_news_texts",
    "check",
    "class_counts",
    "dirichlet_partition",
    "fetch",
    "iid_partition",
    "load",
    "prepare",
    "row_labels",
    "split_rows",
]
